// Reads q.latest as a table of Flink's connector `upsert-kafka` does, with what that connector itself makes rows of records by: a line
// KEY VALUE in base64 for each record in, VALUE empty for a tombstone, and a line KIND KEY NAME N for each change that comes of them, KIND
// as Flink writes it. It is the table
//
//     CREATE TABLE latest (k STRING, name STRING, n BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert-kafka',
//         'key.format' = 'raw', 'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY', ...)

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.flink.api.common.functions.util.ListCollector;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.JsonRowDataDeserializationSchema;
import org.apache.flink.formats.raw.RawFormatDeserializationSchema;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.kafka.clients.consumer.ConsumerRecord;

public class ReadLatestByFlink {
    private static final String SCHEMA = "org.apache.flink.streaming.connectors.kafka.table.DynamicKafkaDeserializationSchema";

    public static void main(String[] arguments) throws Exception {
        KafkaRecordDeserializationSchema<RowData> schema = upsert();
        schema.open(null);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            byte[] key = Base64.getDecoder().decode(parts[0]);
            byte[] value = parts[1].isEmpty() ? null : Base64.getDecoder().decode(parts[1]);
            List<RowData> changes = new ArrayList<>();
            schema.deserialize(new ConsumerRecord<>("latest", 0, 0, key, value), new ListCollector<>(changes));
            for (RowData change : changes)
                System.out.println(
                    change.getRowKind().shortString() + " " + change.getString(0) + " "
                        + (change.isNullAt(1) ? "- -" : change.getString(1) + " " + change.getLong(2)));
        }
    }

    @SuppressWarnings("unchecked")
    private static KafkaRecordDeserializationSchema<RowData> upsert() throws Exception {
        LogicalType key = DataTypes.STRING().getLogicalType();
        RowType value = (RowType) DataTypes.ROW(
            DataTypes.FIELD("name", DataTypes.STRING()), DataTypes.FIELD("n", DataTypes.BIGINT())).getLogicalType();
        LogicalType row = DataTypes.ROW(DataTypes.FIELD("k", DataTypes.STRING()),
            DataTypes.FIELD("name", DataTypes.STRING()), DataTypes.FIELD("n", DataTypes.BIGINT())).getLogicalType();
        DeserializationSchema<RowData> keys = new RawFormatDeserializationSchema(
            key, InternalTypeInfo.of((LogicalType) RowType.of(key)), "UTF-8", true);
        DeserializationSchema<RowData> values = new JsonRowDataDeserializationSchema(
            value, InternalTypeInfo.of((LogicalType) value), false, false, TimestampFormat.ISO_8601);
        // The connector keeps the class to itself.
        Object noMetadata = Array.newInstance(Class.forName(SCHEMA + "$MetadataConverter"), 0);
        Constructor<?> constructor = Class.forName(SCHEMA).getDeclaredConstructor(
            int.class, DeserializationSchema.class, int[].class, DeserializationSchema.class, int[].class, boolean.class,
            noMetadata.getClass(), TypeInformation.class, boolean.class);
        constructor.setAccessible(true);
        boolean hasMetadata = false, upsertMode = true;
        return (KafkaRecordDeserializationSchema<RowData>) constructor.newInstance(
            3, keys, new int[] {0}, values, new int[] {1, 2}, hasMetadata, noMetadata, InternalTypeInfo.of(row), upsertMode);
    }
}
