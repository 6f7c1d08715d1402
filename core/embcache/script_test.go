package embcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"penstock/core/kv"
)

// TestScripts runs the golden scripts. Commands:
//
//	new units=N
//	reserve key=NAME units=N [salt=S] [until=T]   the slot is named by the key, or by as=NAME
//	commit slot=NAME
//	get key=NAME [salt=S]                         the pin is named by the key, or by as=NAME
//	release slot=NAME
//	remove key=NAME
//	now at=T
//
// Every command prints what it changed, in units, and the entries from the least recently used to the most.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := s.run(t, d)
			if err := s.cache.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out + s.state()
		})
	})
}

type script struct {
	cache *RowCache
	now   kv.Mono
	pins  map[string]Ref
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	var name, salt, as string
	var units, until, at int
	d.MaybeScanArgs(t, "key", &name)
	d.MaybeScanArgs(t, "slot", &as)
	d.MaybeScanArgs(t, "as", &as)
	d.MaybeScanArgs(t, "salt", &salt)
	d.MaybeScanArgs(t, "units", &units)
	d.MaybeScanArgs(t, "until", &until)
	d.MaybeScanArgs(t, "at", &at)
	if as == "" {
		as = name
	}
	key := RowKey{Salt: salt, Encoder: "e"}
	copy(key.Digest[:], name)
	var out strings.Builder
	switch d.Cmd {
	case "new":
		*s = script{cache: New(units * Unit), pins: map[string]Ref{}}
	case "reserve":
		got, refused, changes := s.cache.Reserve(&Item{Key: key, Bytes: units * Unit, Until: kv.Mono(until)}, s.now, nil)
		printChanges(&out, changes)
		if refused != NotRefused {
			fmt.Fprintf(&out, "refused: %v\n", refused)
			break
		}
		s.pins[as] = got.Ref
		fmt.Fprintf(&out, "slot at %d\n", got.Slot.Offset/Unit)
	case "commit":
		printChanges(&out, s.cache.Commit(s.pins[as], nil))
	case "get":
		got, ok := s.cache.Get(&key, s.now)
		if !ok {
			return "miss\n"
		}
		s.pins[as] = got.Ref
		fmt.Fprintf(&out, "hit at %d\n", got.Slot.Offset/Unit)
	case "release":
		s.cache.Release(s.pins[as])
	case "remove":
		printChanges(&out, s.cache.Remove(&key, nil))
	case "now":
		s.now = kv.Mono(at)
		printChanges(&out, s.cache.Expire(s.now, nil))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return out.String()
}

func keyName(k *RowKey) string {
	name := strings.TrimRight(string(k.Digest[:]), "\x00")
	if k.Salt != "" {
		name += "@" + k.Salt
	}
	return name
}

func printChanges(out *strings.Builder, changes []Change) {
	for i := range changes {
		c := &changes[i]
		fmt.Fprintf(out, "%v %s at %d+%d\n", c.Cause, keyName(&c.Item.Key), c.Slot.Offset/Unit, c.Slot.Length/Unit)
	}
}

func (s *script) state() string {
	c, all := s.cache, []string(nil)
	for i := c.entries[0].newer; i != 0; i = c.entries[i].newer {
		all = append(all, keyName(&c.entries[i].item.Key))
	}
	for i := range c.entries {
		e := &c.entries[i]
		if e.pins > 0 {
			all = append(all, fmt.Sprintf("%s(%s, %d pins)", keyName(&e.item.Key), [...]string{"", "being written", "readable", "gone"}[e.state], e.pins))
		}
	}
	st := c.Stats()
	if len(all) == 0 {
		all = slices.Insert(all, 0, "empty")
	}
	return fmt.Sprintf("%s; %d+%d of %d units\n", strings.Join(all, " "), st.Bytes/Unit, st.HeldBytes/Unit, st.Capacity/Unit)
}
