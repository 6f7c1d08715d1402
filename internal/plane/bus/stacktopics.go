package bus

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

// ActiveSequencesTopic carries what the routers of a component tell each other about the requests
// that they have sent to its workers: messages of core/activeseq/replica. The key is empty.
func ActiveSequencesTopic(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".slots"}
}

// LoadTopic carries engine.LoadReport objects, keyed by engine.WorkerKey.
func LoadTopic(namespace string) Topic {
	return Topic{Name: namespace + ".load"}
}
