import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transactional producer. Arguments are key=value: bootstrap, id, topic, group (for offsets), then transactions in
 * order, each commit=value,value or abort=value,value; offset=n adds the group's offset n to the next one.
 */
public final class TransactionClient {
    private TransactionClient() {}

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            String[] parts = arg.split("=", 2);
            options.putIfAbsent(parts[0], parts[1]);
        }
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("transactional.id", options.get("id"));
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            long offset = -1;
            for (String arg : args) {
                String[] parts = arg.split("=", 2);
                if (parts[0].equals("offset")) {
                    offset = Long.parseLong(parts[1]);
                } else if (parts[0].equals("commit") || parts[0].equals("abort")) {
                    transact(producer, options, parts[1], offset, parts[0].equals("commit"));
                    offset = -1;
                }
            }
        }
    }

    private static void transact(
            KafkaProducer<String, String> producer, Map<String, String> options, String values, long offset, boolean commit)
            throws Exception {
        String topic = options.get("topic");
        producer.beginTransaction();
        for (String value : values.split(",")) {
            System.out.println(value + " " + producer.send(new ProducerRecord<>(topic, 0, null, value)).get().offset());
        }
        if (offset >= 0) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", options.get("bootstrap"));
            settings.put("group.id", options.get("group"));
            settings.put("key.deserializer", StringDeserializer.class.getName());
            settings.put("value.deserializer", StringDeserializer.class.getName());
            try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
                producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset)), consumer.groupMetadata());
            }
        }
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }
}
