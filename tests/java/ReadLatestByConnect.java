// Reads q.latest as a sink of Connect does that writes upserts, with Connect's converter of JSON without schemas: a line KEY VALUE in
// base64 for each record in, VALUE empty for a tombstone, and a line KEY N for each, N - for a deletion.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.Map;
import org.apache.kafka.connect.json.JsonConverter;

public class ReadLatestByConnect {
    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = new JsonConverter();
        JsonConverter values = new JsonConverter();
        keys.configure(Map.of("schemas.enable", false), true);
        values.configure(Map.of("schemas.enable", false), false);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            byte[] bytes = parts[1].isEmpty() ? null : Base64.getDecoder().decode(parts[1]);
            Object key = keys.toConnectData("t", Base64.getDecoder().decode(parts[0])).value();
            Object value = values.toConnectData("t", bytes).value();
            System.out.println(key + " " + (value == null ? "-" : ((Map<?, ?>) value).get("n")));
        }
    }
}
