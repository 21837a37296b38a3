// Reads envelopes as a sink of Connect does, with Connect's converter and Debezium's own transformation: a line KEY VALUE in base64
// for each record in, and a line NAME N for each row out, NAME - for a deletion.

import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

public class ReadDebezium {
    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = new JsonConverter();
        JsonConverter values = new JsonConverter();
        keys.configure(Map.of(), true);
        values.configure(Map.of(), false);
        ExtractNewRecordState<SinkRecord> rows = new ExtractNewRecordState<>();
        rows.configure(Map.of("delete.tombstone.handling.mode", "tombstone"));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        long offset = 0;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            byte[] bytes = parts[1].isEmpty() ? null : Base64.getDecoder().decode(parts[1]);
            SchemaAndValue key = keys.toConnectData("t", Base64.getDecoder().decode(parts[0]));
            SchemaAndValue value = values.toConnectData("t", bytes);
            SinkRecord record = rows.apply(
                new SinkRecord("t", 0, key.schema(), key.value(), value.schema(), value.value(), offset++));
            if (record != null) { // a tombstone after a deletion is left out
                Object n = record.value() == null ? "-" : ((Struct) record.value()).get("n");
                System.out.println(((Struct) record.key()).get("name") + " " + n);
            }
        }
    }
}
