// Reads the results of a query: final rows, provisional rows, and what is taken back. Needs kafka-clients and jackson-databind.
//
//     java -cp 'JARS/*' Reader.java 127.0.0.1:9092 load          for good
//     java -cp 'JARS/*' Reader.java 127.0.0.1:9092 load now      up to the present end of the topic

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

class Reader {
    public static void main(String[] args) throws Exception {
        var out = new TopicPartition(args[1] + ".out", 0);
        var json = new ObjectMapper();
        long incarnation = 0, nextId = 0;
        var tentative = new TreeMap<Long, JsonNode>();  // the provisional rows by their seq
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0]);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(out));
            consumer.seekToBeginning(List.of(out));
            long end = args.length > 2 ? consumer.endOffsets(List.of(out)).get(out) : Long.MAX_VALUE;
            while (consumer.position(out) < end)
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    var change = json.readTree(record.value());
                    long writer = Long.parseLong(new String(record.headers().lastHeader("incarnation").value()));
                    if (writer < incarnation) continue;  // written by a process that another one has replaced
                    incarnation = writer;
                    switch (change.get("type").asText()) {
                        case "tentative" -> {
                            tentative.put(change.get("seq").asLong(), change.get("data"));
                            System.out.println("tentative " + change.get("data"));
                        }
                        case "undo" -> {
                            var revoked = tentative.tailMap(change.get("after_seq").asLong(), false);
                            System.out.println("undo " + revoked.size());
                            revoked.clear();
                        }
                        case "stable" -> {
                            long id = Long.parseLong(new String(record.headers().lastHeader("id").value()));
                            if (id < nextId) break;  // written twice
                            nextId = id + 1;
                            System.out.println("stable " + change.get("data"));
                        }
                    }
                }
        }
    }
}
