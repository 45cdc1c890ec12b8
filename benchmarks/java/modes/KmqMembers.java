import com.softwaremill.kmq.KafkaClients;
import com.softwaremill.kmq.KmqClient;
import com.softwaremill.kmq.KmqConfig;
import com.softwaremill.kmq.RedeliveryTracker;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.Deserializer;

/** Consumers of a KMQ queue, each with its own threads, and a tracker beside them; see Work for the arguments. */
public final class KmqMembers {
    public static void main(String[] args) throws Exception {
        Work work = new Work(args);
        String group = work.told.get("group");
        KafkaClients clients = new Clients(work);
        KmqConfig config = new KmqConfig(
                work.told.get("topic"),
                work.told.get("markers"),
                group,
                group + "-trackers",
                work.number("retry"),
                1000);
        RedeliveryTracker.start(clients, config);
        for (int one = 0; one < work.number("members"); one++) {
            int member = work.number("first") + one;
            new Thread(() -> consume(work, clients, config, member)).start();
        }
    }

    private static void consume(Work work, KafkaClients clients, KmqConfig config, int member) {
        int concurrency = work.number("concurrency");
        ExecutorService threads = Executors.newFixedThreadPool(concurrency);
        Semaphore room = new Semaphore(concurrency);
        try (KmqClient<byte[], byte[]> client = new KmqClient<>(
                config, clients, ByteArrayDeserializer.class, ByteArrayDeserializer.class, 100)) {
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : client.nextBatch()) {
                    room.acquire();
                    threads.execute(() -> {
                        try {
                            if (work.handle(record.value(), member)) {
                                client.processed(record);
                            }
                        } catch (InterruptedException stopped) {
                            Thread.currentThread().interrupt();
                        } finally {
                            room.release();
                        }
                    });
                }
            }
        } catch (Exception failed) {
            failed.printStackTrace();
            System.exit(1);
        }
    }

    /** KMQ's own, with a session that is as long as the others' in the run. */
    private static final class Clients extends KafkaClients {
        private final Work work;

        Clients(Work work) {
            super(work.told.get("bootstrap"));
            this.work = work;
        }

        @Override
        public <K, V> KafkaConsumer<K, V> createConsumer(
                String group, Class<? extends Deserializer<K>> keys, Class<? extends Deserializer<V>> values) {
            Map<String, Object> settings = new HashMap<>();
            settings.put("bootstrap.servers", work.told.get("bootstrap"));
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.put("key.deserializer", keys.getName());
            settings.put("value.deserializer", values.getName());
            if (group != null) {
                settings.put("group.id", group);
                settings.put("session.timeout.ms", work.number("lease"));
                settings.put("heartbeat.interval.ms", work.number("heartbeat"));
            }
            return new KafkaConsumer<>(settings);
        }
    }
}
