package poolindex

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Labels have a part of a snapshot for themselves, which older routers skip: without it they know less, and
// nothing wrong. See docs/format/snapshot.md, "Pool labels section".
const (
	labelsVersion = 1

	labelSize      = 1 + 4 + 4 + 4         // fields, layer, expert, group
	labelGroupSize = labelSize + 4         // and the number of blocks
	poolBlockSize  = poolIDSize + hashSize // pool, hash
	poolIDSize     = 4
)

// AppendLabels appends the labels of all blocks to dst. Equal tables give equal bytes.
func (t *Table) AppendLabels(dst []byte) []byte {
	labelled := t.labelledEntries()
	le := binary.LittleEndian
	dst = append(dst, labelsVersion)
	counted := len(dst)
	dst = le.AppendUint32(dst, 0)
	groups, blocks := uint32(0), 0 // blocks is the offset of the last label's count
	for i, e := range labelled {
		if i == 0 || labelled[i-1].label != e.label {
			groups++
			dst = append(dst, byte(e.label.Has))
			dst = le.AppendUint32(dst, e.label.Layer)
			dst = le.AppendUint32(dst, e.label.Expert)
			dst = le.AppendUint32(dst, e.label.Group)
			blocks = len(dst)
			dst = le.AppendUint32(dst, 0)
		}
		le.PutUint32(dst[blocks:], le.Uint32(dst[blocks:])+1)
		dst = le.AppendUint32(dst, uint32(t.pools[e.pool].id))
		dst = le.AppendUint64(dst, uint64(e.seq))
	}
	le.PutUint32(dst[counted:], groups)
	return dst
}

// labelledEntries returns the entries which have a label, by label, pool and block.
func (t *Table) labelledEntries() []*poolEntry {
	var all []*poolEntry
	for i := range t.entries {
		if e := &t.entries[i]; e.state != 0 && e.label.Has != 0 {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *poolEntry) int {
		return cmp.Or(compareLabels(a.label, b.label), cmp.Compare(t.pools[a.pool].id, t.pools[b.pool].id), cmp.Compare(a.seq, b.seq))
	})
	return all
}

func compareLabels(a, b kv.MoELabel) int {
	return cmp.Or(cmp.Compare(a.Has, b.Has), cmp.Compare(a.Layer, b.Layer), cmp.Compare(a.Expert, b.Expert), cmp.Compare(a.Group, b.Group))
}

// LoadLabels sets labels from the output of AppendLabels, in a table which LoadSnapshot has just filled, and
// appends the changes of the prefix index to dst. It skips blocks which the table does not know: they were beyond
// its bounds. After an error the table must not be used.
func (t *Table) LoadLabels(data []byte, dst []Effect) ([]Effect, error) {
	dst, err := t.readLabels(snapshotReader{data}, dst)
	if err != nil {
		return nil, fmt.Errorf("poolindex: load labels of %d bytes: %w", len(data), err)
	}
	return dst, nil
}

func (t *Table) readLabels(r snapshotReader, dst []Effect) ([]Effect, error) {
	version, err := r.readByte()
	if err != nil {
		return nil, err
	}
	if version != labelsVersion {
		return nil, fmt.Errorf("%w %d", ErrVersion, version)
	}
	n, err := r.readCount(labelGroupSize + poolBlockSize)
	if err != nil {
		return nil, err
	}
	var last kv.MoELabel
	for range n {
		label, err := r.readLabel()
		if err != nil {
			return nil, err
		}
		if !label.IsValid() || compareLabels(label, last) <= 0 { // so the empty label is refused
			return nil, fmt.Errorf("label %v after %v", label, last)
		}
		last = label
		if dst, err = t.readLabelled(&r, label, dst); err != nil {
			return nil, err
		}
	}
	if len(r.data) > 0 {
		return nil, fmt.Errorf("%d bytes too many", len(r.data))
	}
	return dst, nil
}

// readLabelled reads the blocks of one label.
func (t *Table) readLabelled(r *snapshotReader, label kv.MoELabel, dst []Effect) ([]Effect, error) {
	n, err := r.readCount(poolBlockSize)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, errors.New("a label without blocks")
	}
	var lastPool kv.PoolID
	var lastSeq kv.SeqHash
	for i := range n {
		id, _ := r.readUint32() // readCount has seen that they are there
		hash, err := r.readUint64()
		if err != nil {
			return nil, err
		}
		pool, seq := kv.PoolID(id), kv.SeqHash(hash)
		if i > 0 && cmp.Or(cmp.Compare(pool, lastPool), cmp.Compare(seq, lastSeq)) <= 0 {
			return nil, errors.New("labelled blocks are not in order")
		}
		lastPool, lastSeq = pool, seq
		slot, ok := t.byID[pool]
		if !ok {
			continue
		}
		at := t.findEntry(slot, seq)
		if at == noEntry {
			continue
		}
		e := &t.entries[at]
		if e.label.Has != 0 {
			return nil, fmt.Errorf("block %x has two labels in pool %d", hash, id)
		}
		if e.label = label; e.state == kv.Pooled && !e.suspect && !e.parked {
			dst = t.appendPlace(dst, e)
		}
	}
	return dst, nil
}

func (r *snapshotReader) readLabel() (kv.MoELabel, error) {
	b, err := r.readBytes(labelSize)
	if err != nil {
		return kv.MoELabel{}, err
	}
	le := binary.LittleEndian
	return kv.MoELabel{Has: kv.MoEFields(b[0]), Layer: le.Uint32(b[1:]), Expert: le.Uint32(b[5:]), Group: le.Uint32(b[9:])}, nil
}
