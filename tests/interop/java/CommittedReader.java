import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Reads a topic to the end that its partitions have at first, what is committed only. Arguments are key=value:
 * bootstrap, topic, seconds (at most, 30). A line out for each poll, as ShareClient's.
 */
public final class CommittedReader {
    private static final ObjectMapper JSON = new ObjectMapper();

    private CommittedReader() {}

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        long until = System.nanoTime() + Long.parseLong(options.getOrDefault("seconds", "30")) * 1_000_000_000L;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> places = new ArrayList<>();
            consumer.partitionsFor(options.get("topic"))
                    .forEach(one -> places.add(new TopicPartition(one.topic(), one.partition())));
            consumer.assign(places);
            consumer.seekToBeginning(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            while (!reached(consumer, ends)) {
                if (System.nanoTime() > until) {
                    throw new IllegalStateException("not at " + ends);
                }
                List<Map<String, Object>> records = new ArrayList<>();
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(200))) {
                    records.add(Map.of("partition", one.partition(), "offset", one.offset(), "value", one.value()));
                }
                System.out.println(JSON.writeValueAsString(Map.of("records", records)));
            }
        }
    }

    private static boolean reached(KafkaConsumer<String, String> consumer, Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }
}
