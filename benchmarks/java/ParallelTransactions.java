import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * parallel-consumer, 100 threads, unordered, each record copied to another topic in transactions with the offsets. A
 * record counts when its copy is produced. Arguments: bootstrap, topic, group, records, milliseconds a record, target.
 */
public final class ParallelTransactions {
    public static void main(String[] args) {
        long wait = Long.parseLong(args[4]);
        Meter meter = new Meter(Long.parseLong(args[3]));
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .ordering(ParallelConsumerOptions.ProcessingOrder.UNORDERED)
                        .maxConcurrency(100)
                        .commitMode(ParallelConsumerOptions.CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER)
                        .consumer(new KafkaConsumer<>(consumer(args)))
                        .producer(new KafkaProducer<>(producer(args)))
                        .build());
        processor.subscribe(List.of(args[1]));
        processor.pollAndProduceMany(
                context -> {
                    if (wait > 0) {
                        try {
                            Thread.sleep(wait);
                        } catch (InterruptedException stopped) {
                            Thread.currentThread().interrupt();
                        }
                    }
                    return List.of(new ProducerRecord<>(args[5], context.key(), context.value()));
                },
                produced -> meter.hit());
    }

    private static Properties consumer(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return settings;
    }

    private static Properties producer(String[] args) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", UUID.randomUUID().toString());
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        return settings;
    }
}
