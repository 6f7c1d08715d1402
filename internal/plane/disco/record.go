package disco

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
)

// instanceRecord is what a store keeps for an instance: the instance's fields and the writer.
type instanceRecord struct {
	Instance
	// Holder identifies one registration. It is random, so that a process recognizes its own
	// records after an outage of the store.
	Holder string `json:"holder"`
}

// leaseClaim is the content of a liveness key.
type leaseClaim struct {
	Epoch  uint64 `json:"epoch"`
	Holder string `json:"holder"`
}

// encodeRecord validates r for registration and returns its JSON.
func encodeRecord(r instanceRecord) ([]byte, error) {
	if err := checkKind(r.Kind); err != nil {
		return nil, err
	}
	if r.ID > kv.MaxWorkerID {
		return nil, fault.New(fault.Invalid, "register %s %d: the id must be below 2^53", r.Kind, r.ID)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fault.New(fault.Invalid, "register %s %d: %w", r.Kind, r.ID, err)
	}
	if len(b) > MaxRecord {
		return nil, fault.New(fault.TooLarge, "register %s %d: the record has %d bytes, at most %d are allowed", r.Kind, r.ID, len(b), MaxRecord)
	}
	return b, nil
}

// decodeRecord decodes the stored data of an instance. It ignores fields of newer versions and
// rejects data that contradicts the key.
func decodeRecord(kind Kind, id kv.WorkerID, data []byte) (instanceRecord, error) {
	var r instanceRecord
	if len(data) > MaxRecord {
		return r, fault.New(fault.TooLarge, "record: %d bytes, at most %d are allowed", len(data), MaxRecord)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return instanceRecord{}, fault.New(fault.Invalid, "record: %w", err)
	}
	if r.Kind != kind || r.ID != id {
		return instanceRecord{}, fault.New(fault.Invalid, "record: it does not describe the instance of its key")
	}
	if r.Holder == "" {
		return instanceRecord{}, fault.New(fault.Invalid, "record: it has no holder")
	}
	return r, nil
}

// decodeClaim decodes a liveness key.
func decodeClaim(data []byte) (leaseClaim, error) {
	var c leaseClaim
	if len(data) > 1<<10 {
		return c, fault.New(fault.TooLarge, "lease: %d bytes, at most 1024 are allowed", len(data))
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return leaseClaim{}, fault.New(fault.Invalid, "lease: %w", err)
	}
	if c.Holder == "" {
		return leaseClaim{}, fault.New(fault.Invalid, "lease: it has no holder")
	}
	return c, nil
}

func checkKind(k Kind) error {
	bad := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
	}
	if k == "" || len(k) > 64 || strings.IndexFunc(string(k), bad) >= 0 {
		return fault.New(fault.Invalid, "kind %.100q: use up to 64 letters, digits, '-' and '_'", k)
	}
	return nil
}

// checkSameIdentity reports whether in may be an update of old.
func checkSameIdentity(old, in Instance) error {
	if old.Kind != in.Kind || old.ID != in.ID || old.Epoch != in.Epoch {
		return fault.New(fault.Invalid, "update %s %d of epoch %d: an update must not change kind, id or epoch", old.Kind, old.ID, old.Epoch)
	}
	return nil
}

func errLeaseReleased(in Instance) error {
	return fault.New(fault.Conflict, "update %s %d of epoch %d: the registration was released or replaced by a newer life", in.Kind, in.ID, in.Epoch)
}

func errInstanceHeld(in Instance, epoch uint64) error {
	return fault.New(fault.Conflict, "register %s %d of epoch %d: another process with this id, of epoch %d, is registered and alive; two processes cannot share an id, give this one another", in.Kind, in.ID, in.Epoch, epoch)
}

// FirstDrawnID is the lowest drawn id: it keeps drawn ids apart from the small numbers of workers
// which share a process, and from ids which people choose.
const FirstDrawnID = 1 << 32

// DrawID returns one of 2^53 - 2^32 ids: in a fleet of 10,000 random ids, a collision occurs in one of 180
// million fleets.
func DrawID() kv.WorkerID {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return FirstDrawnID + kv.WorkerID(binary.LittleEndian.Uint64(b[:])%(uint64(kv.MaxWorkerID)-FirstDrawnID+1))
}
