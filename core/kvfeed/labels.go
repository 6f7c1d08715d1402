package kvfeed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock/core/kv"
)

// Labels were added to the format after records were already in streams. They follow the events, where older
// readers do not look, and a bit of the header, which these ignore too, says that they are present: without
// it a truncated record would look like one without labels. The labels of moved blocks were added after moves,
// and follow these in the same form, with a bit of their own.

// hasLabels reports whether ev has labels to encode.
func hasLabels(ev *kv.Event) bool {
	return len(ev.Labels) > 0 && len(ev.Labels) == labelledBlocks(ev)
}

// hasLabelEntry reports whether the labels of ev take an entry of their own: a move with an access list of its
// blocks contains them.
func hasLabelEntry(ev *kv.Event) bool { return hasLabels(ev) && !ev.Move.OfBlocks }

// labelledBlocks returns how many labels ev has if it has any.
func labelledBlocks(ev *kv.Event) int {
	switch ev.Kind {
	case kv.Stored:
		return len(ev.Blocks)
	case kv.Moved:
		return len(ev.Seqs)
	}
	return 0
}

// labelBytes returns the bytes which the labels of ev take after the events.
func labelBytes(ev *kv.Event) int {
	if !hasLabelEntry(ev) {
		return 0
	}
	return labelEntrySize + labelSize*len(ev.Labels)
}

// appendLabels appends an entry for each labelled event of a kind; there must be at least one.
func appendLabels(dst []byte, events []kv.Event, kind kv.EventKind) []byte {
	le := binary.LittleEndian
	last := -1 // offset of the last entry
	for i := range events {
		ev := &events[i]
		if ev.Kind != kind || !hasLabelEntry(ev) {
			continue
		}
		if last >= 0 {
			le.PutUint32(dst[last:], le.Uint32(dst[last:])|moreEntries)
		}
		last = len(dst)
		dst = appendLabelList(le.AppendUint32(dst, uint32(i)), ev.Labels)
	}
	return dst
}

func appendLabelList(dst []byte, labels []kv.MoELabel) []byte {
	le := binary.LittleEndian
	for _, l := range labels {
		dst = append(dst, byte(l.Has))
		dst = le.AppendUint32(dst, l.Layer)
		dst = le.AppendUint32(dst, l.Expert)
		dst = le.AppendUint32(dst, l.Group)
	}
	return dst
}

// decodeLabels decodes the labels at the start of data into the decoded events of a kind, and returns the
// rest. r.labels has room for them.
func (r *Record) decodeLabels(data []byte, kind kv.EventKind) ([]byte, error) {
	for from, more := 0, true; more; {
		if len(data) < labelEntrySize {
			return nil, errors.New("labels: cut short")
		}
		entry := binary.LittleEndian.Uint32(data)
		more = entry&moreEntries != 0
		i := int(entry &^ moreEntries)
		if i < from || i >= len(r.Events) {
			return nil, fmt.Errorf("labels of event %d: must be one of %d to %d", i, from, len(r.Events)-1)
		}
		ev := &r.Events[i]
		if ev.Kind != kind || labelledBlocks(ev) == 0 {
			return nil, fmt.Errorf("labels of event %d, which has no blocks", i)
		}
		var err error
		if data, err = r.decodeEventLabels(ev, data[labelEntrySize:]); err != nil {
			return nil, fmt.Errorf("labels of event %d: %w", i, err)
		}
		from = i + 1
	}
	return data, nil
}

// decodeEventLabels decodes one label for each block of ev and returns the rest.
func (r *Record) decodeEventLabels(ev *kv.Event, data []byte) ([]byte, error) {
	le := binary.LittleEndian
	n := labelledBlocks(ev)
	if len(data)/labelSize < n {
		return nil, errTruncated
	}
	from := len(r.labels)
	for range n {
		l := kv.MoELabel{
			Has:   kv.MoEFields(data[0]),
			Layer: le.Uint32(data[1:]), Expert: le.Uint32(data[5:]), Group: le.Uint32(data[9:]),
		}
		if !l.IsValid() {
			return nil, fmt.Errorf("fields %#x with layer %d, expert %d, group %d", l.Has, l.Layer, l.Expert, l.Group)
		}
		r.labels, data = append(r.labels, l), data[labelSize:]
	}
	ev.Labels = r.labels[from:len(r.labels):len(r.labels)]
	return data, nil
}
