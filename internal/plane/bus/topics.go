package bus

// The topics of a serving stack, one set per namespace. They are functions so
// that everyone passes equal values.

// KVEvents carries what the caches of a component's workers hold: records of
// core/feed, keyed by engine.WorkerKey. Each worker numbers its own events, so what
// retention drops is noticed and asked for again on [KVResync]. A router follows one
// component, so that its place in one stream says all that it has heard.
func KVEvents(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".kv-events", Durable: true}
}

// KVResync carries requests of routers for what is missing of a worker's events, or for a
// description of its cache: bodies of feed.Request. The key names the worker that is asked.
func KVResync(namespace string) Topic {
	return Topic{Name: namespace + ".kv-resync"}
}

// Slots carries what the routers of a component tell each other of the requests that
// they have sent to its workers: messages of core/slots/replica. The key is empty.
func Slots(namespace, component string) Topic {
	return Topic{Name: namespace + "." + component + ".slots"}
}

// Load carries engine.LoadReport objects, keyed by engine.WorkerKey.
func Load(namespace string) Topic {
	return Topic{Name: namespace + ".load"}
}
