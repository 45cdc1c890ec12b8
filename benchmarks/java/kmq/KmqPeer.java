import com.softwaremill.kmq.KafkaClients;
import com.softwaremill.kmq.KmqClient;
import com.softwaremill.kmq.KmqConfig;
import com.softwaremill.kmq.RedeliveryTracker;
import java.io.Closeable;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * KMQ 0.2. Arguments: role, bootstrap, queue, markers, consumer group, tracker group, timeout in ms, records.
 *
 * <p>Role "client": prints each record that it gets, "partition offset value", and ends it, but for those that begin
 * with "once" the first time. "rate": ends all, and prints how many records a second. "tracker": redelivers until its
 * input ends.
 */
public final class KmqPeer {
    private static final int UNCONFIRMED_MAX = 50_000;

    public static void main(String[] args) throws Exception {
        KafkaClients clients = new KafkaClients(args[1]);
        KmqConfig config = new KmqConfig(args[2], args[3], args[4], args[5], Long.parseLong(args[6]), 1000);
        long records = Long.parseLong(args[7]);
        switch (args[0]) {
            case "client" -> client(clients, config, records);
            case "rate" -> rate(clients, config, records);
            case "tracker" -> tracker(clients, config);
            default -> throw new IllegalArgumentException(args[0]);
        }
        System.exit(0); // akka's threads go on
    }

    private static KmqClient<byte[], byte[]> open(KafkaClients clients, KmqConfig config) {
        return new KmqClient<>(config, clients, ByteArrayDeserializer.class, ByteArrayDeserializer.class, 100);
    }

    private static void client(KafkaClients clients, KmqConfig config, long records) throws Exception {
        Set<String> seen = new HashSet<>();
        try (KmqClient<byte[], byte[]> client = open(clients, config)) {
            for (long count = 0; count < records; ) {
                for (ConsumerRecord<byte[], byte[]> record : client.nextBatch()) {
                    String value = new String(record.value());
                    System.out.println(record.partition() + " " + record.offset() + " " + value);
                    count++;
                    if (seen.add(value) && value.startsWith("once")) {
                        continue;
                    }
                    client.processed(record).get();
                }
            }
        }
    }

    private static void rate(KafkaClients clients, KmqConfig config, long records) throws Exception {
        ArrayDeque<Future<RecordMetadata>> ends = new ArrayDeque<>();
        try (KmqClient<byte[], byte[]> client = open(clients, config)) {
            long began = 0;
            long count = 0;
            while (count < records) {
                for (ConsumerRecord<byte[], byte[]> record : client.nextBatch()) {
                    if (count++ == 0) {
                        began = System.nanoTime();
                    }
                    ends.add(client.processed(record));
                    if (ends.size() > UNCONFIRMED_MAX) {
                        ends.remove().get();
                    }
                }
            }
            while (!ends.isEmpty()) {
                ends.remove().get();
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            System.out.printf(java.util.Locale.ROOT, "{\"records\": %d, \"seconds\": %.3f}%n", count, seconds);
        }
    }

    private static void tracker(KafkaClients clients, KmqConfig config) throws Exception {
        try (Closeable tracker = RedeliveryTracker.start(clients, config)) {
            System.out.println("started");
            while (System.in.read() >= 0) {
                // until the input ends
            }
        }
    }
}
