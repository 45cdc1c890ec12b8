import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Members of a group of parallel-consumer, each with its own threads; see Work for the arguments. */
public final class ParallelMembers {
    public static void main(String[] args) throws Exception {
        Work work = new Work(args);
        for (int one = 0; one < work.number("members"); one++) {
            start(work, work.number("first") + one);
        }
    }

    private static void start(Work work, int member) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", work.told.get("bootstrap"));
        settings.put("group.id", work.told.get("group"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", work.number("lease"));
        settings.put("heartbeat.interval.ms", work.number("heartbeat"));
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .ordering(ParallelConsumerOptions.ProcessingOrder.valueOf(work.told.get("order")))
                        .maxConcurrency(work.number("concurrency"))
                        .defaultMessageRetryDelay(Duration.ofMillis(work.number("retry")))
                        .consumer(new KafkaConsumer<>(settings))
                        .build());
        processor.subscribe(List.of(work.told.get("topic")));
        processor.poll(context -> {
            try {
                if (!work.handle(context.value(), member)) {
                    throw new IllegalStateException("fails once");
                }
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        });
    }
}
