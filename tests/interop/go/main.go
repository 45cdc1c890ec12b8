// A client on franz-go that does what its arguments say and prints lines of JSON.
//
// Arguments are key=value. bootstrap, topic and do are for all: what to do is share, produce, group, transact or copy.
// The words of each are at its function. It ends with 1 and says why when something fails.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type words map[string]string

func (w words) text(key, otherwise string) string {
	if found, ok := w[key]; ok {
		return found
	}
	return otherwise
}

func (w words) number(key string, otherwise int) int {
	found, ok := w[key]
	if !ok {
		return otherwise
	}
	number, err := strconv.Atoi(found)
	if err != nil {
		panic(err)
	}
	return number
}

func (w words) client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(w["bootstrap"]))...)
}

type told struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     string `json:"value"`
	Delivery  int32  `json:"delivery"`
	Done      string `json:"done"`
}

func tell(records []told, failures []string) {
	line, err := json.Marshal(map[string]any{"records": records, "errors": failures})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func plain(record *kgo.Record) told {
	return told{record.Partition, record.Offset, string(record.Value), 0, "read"}
}

// The first error of a poll that is not the end of its time.
func failed(fetches kgo.Fetches) error {
	for _, one := range fetches.Errors() {
		if !errors.Is(one.Err, context.DeadlineExceeded) {
			return one.Err
		}
	}
	return nil
}

// group, count (deliveries to end after), max (records a fetch), strict=yes (never more), renews and every_ms (how
// often a record is renewed before it is settled, and how long to wait after each).
//
// The value says what is done with a record: "release…" is released at its first delivery, "reject…" is rejected,
// "leave…" is left to the end of the client, all others are accepted.
func share(ctx context.Context, w words) error {
	var lock sync.Mutex
	failures := []string{}
	options := []kgo.Opt{
		kgo.ShareGroup(w["group"]),
		kgo.ConsumeTopics(w["topic"]),
		kgo.ShareMaxRecords(int32(w.number("max", 500))),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			lock.Lock()
			defer lock.Unlock()
			if err := results.Error(); err != nil {
				failures = append(failures, err.Error())
			}
		}),
	}
	if w.text("strict", "no") == "yes" {
		options = append(options, kgo.ShareMaxRecordsStrict())
	}
	client, err := w.client(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for settled := 0; settled < w.number("count", 1) && ctx.Err() == nil; {
		fetches := client.PollFetches(ctx)
		if err := failed(fetches); err != nil {
			return err
		}
		records := []told{}
		for _, record := range fetches.Records() {
			done, err := settle(client, record, w)
			if err != nil {
				return err
			}
			records = append(records,
				told{record.Partition, record.Offset, string(record.Value), record.DeliveryCount(), done})
		}
		settled += len(records)
		if err := client.FlushAcks(context.Background()); err != nil {
			return err
		}
		if len(records) > 0 {
			lock.Lock()
			tell(records, failures)
			lock.Unlock()
		}
	}
	return nil
}

func settle(client *kgo.Client, record *kgo.Record, w words) (string, error) {
	for range w.number("renews", 0) {
		record.Ack(kgo.AckRenew)
		if err := client.FlushAcks(context.Background()); err != nil {
			return "", err
		}
		time.Sleep(time.Duration(w.number("every_ms", 0)) * time.Millisecond)
	}
	value, status := string(record.Value), kgo.AckAccept
	switch {
	case strings.HasPrefix(value, "leave"):
		return "leave", nil
	case strings.HasPrefix(value, "reject"):
		status = kgo.AckReject
	case strings.HasPrefix(value, "release") && record.DeliveryCount() == 1:
		status = kgo.AckRelease
	}
	record.Ack(status)
	return status.String(), nil
}

// count (records "0", "1", …), compression (none, gzip, snappy, lz4, zstd); idempotent, as franz-go is by itself.
func produce(ctx context.Context, w words) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := w.client(
		kgo.DefaultProduceTopic(w["topic"]), kgo.ProducerBatchCompression(codecs[w.text("compression", "none")]))
	if err != nil {
		return err
	}
	defer client.Close()
	records := []*kgo.Record{}
	for number := range w.number("count", 1) {
		records = append(records, kgo.StringRecord(strconv.Itoa(number)))
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	sent := []told{}
	for _, record := range records {
		sent = append(sent, plain(record))
	}
	tell(sent, []string{})
	return nil
}

// group, count (records to end after; they are committed), protocol (classic, consumer), pattern (whether the topic is
// one); reads what is committed only.
func group(ctx context.Context, w words) error {
	options := []kgo.Opt{
		kgo.ConsumerGroup(w["group"]), kgo.ConsumeTopics(w["topic"]), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted())}
	if w.text("protocol", "classic") == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	if w.text("pattern", "no") == "yes" {
		options = append(options, kgo.ConsumeRegex())
	}
	client, err := w.client(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for taken := 0; taken < w.number("count", 1) && ctx.Err() == nil; {
		fetches := client.PollFetches(ctx)
		if err := failed(fetches); err != nil {
			return err
		}
		records := []told{}
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, plain(record)) })
		taken += len(records)
		tell(records, []string{})
	}
	return client.CommitUncommittedOffsets(context.Background())
}

// id, values ("one,!two": a transaction for each; what begins with "!" is aborted).
func transact(ctx context.Context, w words) error {
	client, err := w.client(kgo.TransactionalID(w["id"]), kgo.DefaultProduceTopic(w["topic"]))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, value := range strings.Split(w["values"], ",") {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		if err := client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr(); err != nil {
			return err
		}
		end := kgo.TransactionEndTry(!strings.HasPrefix(value, "!"))
		if err := client.EndTransaction(ctx, end); err != nil {
			return err
		}
	}
	return nil
}

// group, id, to, count: copies so many records to another topic, with their offsets in the same transactions.
func copyAll(ctx context.Context, w words) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(w["bootstrap"]), kgo.ConsumerGroup(w["group"]), kgo.TransactionalID(w["id"]),
		kgo.ConsumeTopics(w["topic"]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	if err != nil {
		return err
	}
	defer session.Close()
	for copied := 0; copied < w.number("count", 1) && ctx.Err() == nil; {
		fetches := session.PollFetches(ctx)
		if err := failed(fetches); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		records := []*kgo.Record{}
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, &kgo.Record{Topic: w["to"], Value: record.Value})
		})
		if err := session.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		committed, err := session.End(ctx, kgo.TryCommit)
		if err != nil {
			return err
		}
		if committed {
			copied += len(records)
		}
	}
	return nil
}

func main() {
	w := words{}
	for _, argument := range os.Args[1:] {
		key, value, _ := strings.Cut(argument, "=")
		w[key] = value
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(w.number("seconds", 30))*time.Second)
	defer cancel()
	work := map[string]func(context.Context, words) error{
		"share": share, "produce": produce, "group": group, "transact": transact, "copy": copyAll,
	}[w["do"]]
	if err := work(ctx, w); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
