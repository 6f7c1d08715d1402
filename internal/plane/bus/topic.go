package bus

import (
	"cmp"
	"strings"

	"penstock/core/fault"
)

// withDefaults returns t with its defaults filled in, or an error if t is invalid.
func (t Topic) withDefaults() (Topic, error) {
	if err := checkName(t.Name); err != nil {
		return t, err
	}
	if t.MaxBytes < 0 || t.MaxAge < 0 {
		return t, fault.New(fault.Invalid, "topic %s: the limits must not be negative, have %d bytes and %v", t.Name, t.MaxBytes, t.MaxAge)
	}
	if !t.Durable {
		t.MaxBytes, t.MaxAge = 0, 0 // nothing is retained, so the bounds do not apply
		return t, nil
	}
	t.MaxBytes = cmp.Or(t.MaxBytes, DefaultMaxBytes)
	t.MaxAge = cmp.Or(t.MaxAge, DefaultMaxAge)
	if t.MaxBytes < minMaxBytes {
		return t, fault.New(fault.Invalid, "topic %s: MaxBytes is %d, a durable topic needs at least %d", t.Name, t.MaxBytes, minMaxBytes)
	}
	return t, nil
}

// requireDurable returns t with its defaults filled in, or an error if t is invalid or not durable.
// op is for the error.
func (t Topic) requireDurable(op string) (Topic, error) {
	t, err := t.withDefaults()
	if err == nil && !t.Durable {
		err = fault.New(fault.Invalid, "%s %s: the topic is not durable, nothing of it is kept", op, t.Name)
	}
	return t, err
}

// checkName accepts words of letters, digits, '-' and '_', joined by single dots.
func checkName(name string) error {
	if len(name) > MaxName {
		return fault.New(fault.Invalid, "topic name: %d bytes, at most %d are allowed", len(name), MaxName)
	}
	for word := range strings.SplitSeq(name, ".") {
		if word == "" || strings.IndexFunc(word, func(r rune) bool { return !isNameRune(r) }) >= 0 {
			return fault.New(fault.Invalid, "topic name %.100q: use letters, digits, '-' and '_' in words joined by single dots", name)
		}
	}
	return nil
}

func isNameRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}

// checkMessage validates a message for t. t has its defaults.
func checkMessage(t Topic, key string, data []byte) error {
	if len(key) > MaxKey {
		return fault.New(fault.Invalid, "publish %s: the key has %d bytes, at most %d are allowed", t.Name, len(key), MaxKey)
	}
	limit := int64(MaxData)
	if t.Durable {
		limit = min(limit, t.MaxBytes-messageOverhead-MaxKey)
	}
	if int64(len(data)) > limit {
		return fault.New(fault.TooLarge, "publish %s: the message has %d bytes, at most %d are allowed", t.Name, len(data), limit)
	}
	return nil
}

// minMaxBytes is the lower bound of MaxBytes of a durable topic.
const minMaxBytes = 4 << 10

// messageOverhead is the storage of a retained message in addition to its key and data, in bytes.
// It is about that of the record and subject in a JetStream file store.
const messageOverhead = 64

// The topics of a serving stack, one set per namespace. They are functions so that all users pass
// equal values.

// KVEventsTopic carries the KV cache events of a component's workers: records of core/kvfeed, keyed
// by engine.WorkerKey. Each worker numbers its own events, so a subscriber notices events which
// retention dropped and requests them on [KVResyncTopic]. A router follows one component, so its
// position in one stream identifies all events that it has received.
func KVEventsTopic(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".kv-events", Durable: true}
}

// KVResyncTopic carries requests of routers for missing events of a worker, or for a description of
// its cache: bodies of feed.Request. The key is that of the requested worker.
func KVResyncTopic(namespace string) Topic {
	return Topic{Name: namespace + ".kv-resync"}
}

// EmbeddingEventsTopic carries the events of the embedding caches of a component's workers: records of
// core/kvfeed/embfeed, keyed by engine.WorkerKey, as [KVEventsTopic] does for KV caches.
func EmbeddingEventsTopic(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".embedding-events", Durable: true, MaxBytes: 16 << 20}
}

// EmbeddingResyncTopic carries requests for missing events of a worker's embedding cache, as [KVResyncTopic] does.
func EmbeddingResyncTopic(namespace string) Topic {
	return Topic{Name: namespace + ".embedding-resync"}
}

// ActiveSequencesTopic carries what the routers of a component tell each other about the requests
// that they have sent to its workers: messages of core/activeseq/replica. The key is empty.
func ActiveSequencesTopic(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".slots"}
}

// LoadTopic carries engine.LoadReport objects, keyed by engine.WorkerKey.
func LoadTopic(namespace string) Topic {
	return Topic{Name: namespace + ".load"}
}
