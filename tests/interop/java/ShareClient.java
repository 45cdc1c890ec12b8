import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that does what its arguments say, and prints a line of JSON for each poll that brought something.
 *
 * <p>Arguments are key=value: bootstrap, topic, group, mode (implicit, explicit), acquire (batch_optimized,
 * record_limit), max (records a poll), count (deliveries to end after), seconds (to end after), renews and every_ms
 * (how often a record is renewed before it is settled, and how long to wait before each), pause_ms (after each poll).
 *
 * <p>In explicit mode the value of a record says what is done with it: "release…" is released at its first delivery,
 * "reject…" is rejected, "leave…" is left to the end of the consumer, all others are accepted.
 */
public final class ShareClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, String> options = new HashMap<>();
    private final KafkaShareConsumer<String, String> consumer;
    private int deliveries;
    private final Map<Long, Integer> renewed = new HashMap<>();

    private ShareClient(String[] args) {
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("group.id", options.get("group"));
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("share.acknowledgement.mode", options.getOrDefault("mode", "implicit"));
        settings.put("share.acquire.mode", options.getOrDefault("acquire", "batch_optimized"));
        settings.put("max.poll.records", options.getOrDefault("max", "500"));
        consumer = new KafkaShareConsumer<>(settings);
    }

    public static void main(String[] args) throws Exception {
        ShareClient client = new ShareClient(args);
        try {
            client.work();
        } finally {
            client.consumer.close(Duration.ofSeconds(10));
        }
    }

    private void work() throws Exception {
        consumer.subscribe(List.of(options.get("topic")));
        int count = Integer.parseInt(options.getOrDefault("count", "1"));
        long end = System.nanoTime() + Duration.ofSeconds(Long.parseLong(options.getOrDefault("seconds", "30"))).toNanos();
        while (deliveries < count && System.nanoTime() < end) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
            if (records.isEmpty()) {
                continue;
            }
            List<Map<String, Object>> told = new ArrayList<>();
            for (ConsumerRecord<String, String> record : records) {
                told.add(tell(record, settle(record)));
            }
            System.out.println(JSON.writeValueAsString(Map.of("records", told, "errors", commit())));
            Thread.sleep(Long.parseLong(options.getOrDefault("pause_ms", "0")));
        }
    }

    private String settle(ConsumerRecord<String, String> record) throws InterruptedException {
        if (!"explicit".equals(options.get("mode"))) {
            deliveries++;
            return "implicit";
        }
        if (renewed.merge(record.offset(), 1, Integer::sum) <= Integer.parseInt(options.getOrDefault("renews", "0"))) {
            Thread.sleep(Long.parseLong(options.get("every_ms")));
            consumer.acknowledge(record, AcknowledgeType.RENEW);
            return "renew";
        }
        deliveries++;
        if (record.value().startsWith("leave")) {
            return "leave";
        }
        AcknowledgeType type = record.value().startsWith("reject")
                ? AcknowledgeType.REJECT
                : record.value().startsWith("release") && record.deliveryCount().orElse((short) 1) == 1
                        ? AcknowledgeType.RELEASE
                        : AcknowledgeType.ACCEPT;
        consumer.acknowledge(record, type);
        return type.toString();
    }

    private static Map<String, Object> tell(ConsumerRecord<String, String> record, String done) {
        return Map.of(
                "partition", record.partition(),
                "offset", record.offset(),
                "value", record.value(),
                "delivery", record.deliveryCount().orElse((short) 0),
                "done", done);
    }

    private List<String> commit() {
        List<String> errors = new ArrayList<>();
        consumer.commitSync(Duration.ofSeconds(10))
                .forEach((partition, error) -> error.ifPresent(found -> errors.add(partition + ": " + found)));
        return errors;
    }
}
