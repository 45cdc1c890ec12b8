import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * parallel-consumer, 100 threads. Arguments: bootstrap, topic, group, records, milliseconds a record, UNORDERED or KEY.
 */
public final class ParallelRate {
    public static void main(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        long wait = Long.parseLong(args[4]);
        Meter meter = new Meter(Long.parseLong(args[3]));
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .ordering(ParallelConsumerOptions.ProcessingOrder.valueOf(args[5]))
                        .maxConcurrency(100)
                        .consumer(new KafkaConsumer<>(settings))
                        .build());
        processor.subscribe(List.of(args[1]));
        processor.poll(context -> {
            if (wait > 0) {
                try {
                    Thread.sleep(wait);
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
            }
            meter.hit();
        });
    }
}
