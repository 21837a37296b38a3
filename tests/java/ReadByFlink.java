// Reads envelopes as a table of Flink does, with Flink's own format `debezium-json`: a line VALUE in base64 for each record in, and a
// line KIND NAME N for each change that comes of them, KIND as Flink writes it: +I, -U, +U or -D.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.List;
import org.apache.flink.api.common.functions.util.ListCollector;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.debezium.DebeziumJsonDeserializationSchema;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;

public class ReadByFlink {
    public static void main(String[] arguments) throws Exception {
        DataType row = DataTypes.ROW(
            DataTypes.FIELD("name", DataTypes.STRING()), DataTypes.FIELD("n", DataTypes.BIGINT()));
        boolean withSchema = true; // 'debezium-json.schema-include'
        DebeziumJsonDeserializationSchema format = new DebeziumJsonDeserializationSchema(
            row, List.of(), InternalTypeInfo.of(row.getLogicalType()), withSchema, false, TimestampFormat.ISO_8601);
        format.open(null);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<RowData> changes = new java.util.ArrayList<>();
            format.deserialize(line.isEmpty() ? null : Base64.getDecoder().decode(line), new ListCollector<>(changes));
            for (RowData change : changes)
                System.out.println(
                    change.getRowKind().shortString() + " " + change.getString(0) + " " + change.getLong(1));
        }
    }
}
