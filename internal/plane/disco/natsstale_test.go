package disco

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
)

// plantDead writes what a killed process leaves in a store that has lost the
// expiry of its liveness key, as nats-server does when it is killed after the key
// ran out: the record, and the key without a time to live.
func plantDead(t *testing.T, r *NATSRegistry, in Instance) {
	t.Helper()
	b, err := r.openBucket(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	rec := instanceRecord{Instance: in, Holder: newHolder()}
	data, err := encodeRecord(rec)
	if err != nil {
		t.Fatal(err)
	}
	key, err := json.Marshal(leaseClaim{Epoch: in.Epoch, Holder: rec.Holder})
	if err != nil {
		t.Fatal(err)
	}
	n := instanceKey{in.Kind, in.ID}
	if _, err := b.Put(fixturetest.PatientContext(t), leaseKey(n), key); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(fixturetest.PatientContext(t), recordKey(n), data); err != nil {
		t.Fatal(err)
	}
}

// A liveness key which its holder no longer refreshes and which the store never expires is removed
// nevertheless: for watchers, in the store, and for new registrations.
func TestNATSLeaseWithoutExpiry(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	r := open(t, s, NATSRegistryConfig{})
	plantDead(t, r, instance(2, "dead"))
	plantDead(t, r, instance(3, "dead"))
	early, late := watchSets(t, r), watchSets(t, open(t, s, NATSRegistryConfig{}))
	register(t, r, instance(1, "a"))
	for _, sets := range []<-chan string{early, late} {
		for _, set := range await(t, sets, "1@a") {
			if set != "2@dead 3@dead" && set != "1@a 2@dead 3@dead" && set != "1@a 2@dead" && set != "1@a 3@dead" {
				t.Errorf("the set was [%s]", set)
			}
		}
	}
	register(t, r, instance(2, "again")) // the same epoch as the dead one's
	await(t, early, "1@a 2@again")
}

// A refresh that the watcher has not heard of yet is not lost to the removal of
// the liveness key: the store decides.
func TestNATSExpiresOnlyWhatItSaw(t *testing.T) {
	t.Parallel()
	s := startServer(t, natsd.Config{})
	r := open(t, s, NATSRegistryConfig{})
	plantDead(t, r, instance(9, "other")) // revisions 1 and 2
	register(t, r, instance(1, "a"))
	b, err := r.openBucket(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.Get(fixturetest.PatientContext(t), "lease.worker.1")
	if err != nil {
		t.Fatal(err)
	}
	w := &natsWatcher{reg: r, kind: KindWorker, view: newInstanceView(ttl)}
	now := time.Now()
	w.view.startReading()
	w.view.refreshLease(now, 1, e.Revision()-1) // the one before
	w.view.putRecord(now, instance(1, "a"), 2)
	w.view.finishReading(now)
	dead := w.view.takeOverdue(now.Add(2 * ttl))
	if len(dead) != 1 {
		t.Fatalf("overdue: %v, want one", dead)
	}
	if err := w.removeOverdueLease(fixturetest.PatientContext(t), dead[0]); err != nil {
		t.Error(err)
	}
	if now, err := b.Get(fixturetest.PatientContext(t), "lease.worker.1"); err != nil || now.Operation() != jetstream.KeyValuePut {
		t.Errorf("the lease is %v, %v after the removal of an older one", now, err)
	}
	if err := w.removeOverdueLease(fixturetest.PatientContext(t), deadLease{1, e.Revision()}); err != nil {
		t.Error(err)
	}
	if now, err := b.Get(fixturetest.PatientContext(t), "lease.worker.1"); err == nil && now.Revision() == e.Revision() {
		t.Error("the lease is still there")
	}
}
