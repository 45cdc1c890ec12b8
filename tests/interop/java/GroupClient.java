import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of one group with group.protocol=consumer. Arguments are key=value: bootstrap, group, topic or pattern,
 * members (2), partitions (of all topics), count (records in them), leave (members that go in the end, 1), assignor,
 * instance (beginning of their instance ids), seconds (at most, 60).
 *
 * <p>All join one after the other, read everything, commit; then some leave, and the others have all partitions. Lines
 * out: {"records": [...], "assigned": [[partition, ...], ...]} after each of the two.
 */
public final class GroupClient {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, String> options = new HashMap<>();
    private final List<KafkaConsumer<String, String>> members = new ArrayList<>();
    private final List<Map<String, Object>> records = new ArrayList<>();
    private final long until;

    private GroupClient(String[] args) {
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        until = System.nanoTime() + number("seconds", 60) * 1_000_000_000L;
    }

    public static void main(String[] args) throws Exception {
        GroupClient client = new GroupClient(args);
        try {
            client.run();
        } finally {
            for (KafkaConsumer<String, String> member : client.members) {
                member.close(CloseOptions.timeout(Duration.ofSeconds(5)));
            }
        }
    }

    private int number(String key, int otherwise) {
        return Integer.parseInt(options.getOrDefault(key, Integer.toString(otherwise)));
    }

    private void run() throws Exception {
        for (int place = 0; place < number("members", 2); place++) {
            members.add(member(place));
            shared();
        }
        while (records.size() < number("count", 0)) {
            poll();
        }
        for (KafkaConsumer<String, String> member : members) {
            member.commitSync();
        }
        tell();
        for (int left = number("leave", 1); left > 0; left--) {
            members.remove(members.size() - 1).close();
        }
        records.clear();
        shared();
        tell();
    }

    private KafkaConsumer<String, String> member(int place) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("group.id", options.get("group"));
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        if (options.containsKey("assignor")) {
            settings.put("group.remote.assignor", options.get("assignor"));
        }
        if (options.containsKey("instance")) {
            settings.put("group.instance.id", options.get("instance") + place);
        }
        KafkaConsumer<String, String> member = new KafkaConsumer<>(settings);
        if (options.containsKey("pattern")) {
            member.subscribe(new SubscriptionPattern(options.get("pattern")));
        } else {
            member.subscribe(List.of(options.get("topic")));
        }
        return member;
    }

    /** Every partition is with one member, and everybody has some. */
    private void shared() {
        boolean all = false;
        while (!all) {
            poll();
            Set<TopicPartition> found = new HashSet<>();
            int sum = 0;
            all = true;
            for (KafkaConsumer<String, String> member : members) {
                found.addAll(member.assignment());
                sum += member.assignment().size();
                all = all && !member.assignment().isEmpty();
            }
            if (sum > found.size()) {
                throw new IllegalStateException("a partition has two owners");
            }
            all = all && sum == number("partitions", 1);
        }
    }

    private void poll() {
        if (System.nanoTime() > until) {
            throw new IllegalStateException("not done with " + members.size() + " members, " + records.size());
        }
        for (KafkaConsumer<String, String> member : members) {
            for (ConsumerRecord<String, String> one : member.poll(Duration.ofMillis(50))) {
                records.add(Map.of("partition", one.partition(), "offset", one.offset(), "value", one.value()));
            }
        }
    }

    private void tell() throws Exception {
        List<List<String>> assigned = new ArrayList<>();
        for (KafkaConsumer<String, String> member : members) {
            Set<String> names = new TreeSet<>();
            member.assignment().forEach(one -> names.add(one.toString()));
            assigned.add(List.copyOf(names));
        }
        System.out.println(JSON.writeValueAsString(Map.of("records", records, "assigned", assigned)));
    }
}
