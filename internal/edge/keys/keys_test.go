package keys

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/limit"
	"penstock/internal/fixturetest"
	"penstock/internal/reload"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

const (
	alice = "sk-alice-0123456789"
	bob   = "sk-bob-0123456789ab"
	carol = "sk-carol-0123456789"
)

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func TestParse(t *testing.T) {
	all, err := ParseFile(fmt.Appendf(nil, `
keys:
  - name: alice
    key: %s
    admin: true
  - name: bob.2
    sha256: [%s, %s]
    models: [tiny, other]
    requests_per_minute: 60
    tokens_per_minute: 100000
    max_inflight: 8
`, alice, hashOf(bob), strings.ToUpper(hashOf(carol))))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	a, b := all[0], all[1]
	if a.Name != "alice" || !a.Admin || a.Models != nil || a.Limits != (limit.Limits{}) || !a.AllowsModel("anything") {
		t.Errorf("alice is %+v", a)
	}
	if b.Name != "bob.2" || b.Admin || b.Limits != (limit.Limits{RequestsPerMinute: 60, TokensPerMinute: 100000, MaxInflight: 8}) || len(b.digests) != 2 {
		t.Errorf("bob is %+v", b)
	}
	for names, want := range map[string]bool{"tiny": true, "alias,other": true, "tin": false, "": false} {
		if b.AllowsModel(strings.Split(names, ",")...) != want {
			t.Errorf("bob and the model %s: not %v", names, want)
		}
	}
}

// TestParseRefuses: every problem is reported with its line, and without values which may be keys.
func TestParseRefuses(t *testing.T) {
	key := "key: " + alice
	for _, c := range []struct{ file, want string }{
		{"", "no keys"},
		{"keys: []", "no keys"},
		{"a: b", "line 1: want the one member"},
		{"- " + alice, "want the one member"},
		{"keys:\n  - " + alice, "line 2: a key has the fields"},
		{"keys:\n  - {name: a}", "neither key nor sha256"},
		{"keys:\n  - {" + key + "}", "no name"},
		{"keys:\n  - {name: a b, " + key + "}", "name must be"},
		{"keys:\n  - {name: a, " + key + ", " + alice + ": 1}", "no such field"},
		{"keys:\n  - {name: a, " + key + ", " + key + "}", "given twice"},
		{"keys:\n  - {name: a, key: short}", "16 to 512 printable"},
		{"keys:\n  - {name: a, key: '" + alice + " '}", "no spaces"},
		{"keys:\n  - {name: a, key: []}", "1 to 8 keys"},
		{"keys:\n  - {name: a, key: [[" + alice + "]]}", "want a text"},
		{"keys:\n  - {name: a, sha256: " + alice + "}", "64 hexadecimal"},
		{"keys:\n  - {name: a, sha256: " + hashOf(alice) + "00}", "64 hexadecimal"},
		{"keys:\n  - {name: a, " + key + "}\n  - {name: a, key: " + bob + "}", "line 3: the name a is taken by the key of line 2"},
		{"keys:\n  - {name: a, " + key + "}\n  - {name: b, sha256: " + hashOf(alice) + "}", "line 3: this key is that of line 2"},
		{"keys:\n  - {name: a, " + key + ", admin: " + alice + "}", "true or false"},
		{"keys:\n  - {name: a, " + key + ", admin: yes}", "true or false"},
		{"keys:\n  - {name: a, " + key + ", max_inflight: " + alice + "}", "whole number"},
		{"keys:\n  - {name: a, " + key + ", max_inflight: 0}", "leave it out"},
		{"keys:\n  - {name: a, " + key + ", tokens_per_minute: 99999999999999999999}", "whole number"},
		{"keys:\n  - {name: a, " + key + ", models: []}", "leave it out"},
		{"keys:\n  - {name: a, " + key + ", models: [['x']]}", "name of a model"},
		{"keys: *" + alice, "not YAML"},
		{"keys:\n\t- " + alice, "not YAML at line 2"},
	} {
		_, err := ParseFile([]byte(c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n\tgives %v\n\twant %s", c.file, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "alice") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	_, err := ParseFile([]byte("keys:\n  - {name: a, key: x}\n  - {name: b, admin: 3, sha256: y}"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("of three problems are reported:\n%v", err)
	}
}

func TestSecret(t *testing.T) {
	for _, c := range []struct{ file, want string }{
		{"keys: [{name: a, key: " + alice + "}, {name: b, key: [" + bob + ", " + carol + "], admin: true}]", bob},
		{"keys: [{name: h, sha256: " + hashOf(carol) + "}, {name: a, key: " + alice + "}, {name: b, key: " + bob + "}]", alice},
		{"keys: [{name: h, sha256: " + hashOf(carol) + "}]", ""},
		{"keys: []", ""},
	} {
		got, err := PickSecret([]byte(c.file))
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s gives %q, %v", c.file, got, err)
		}
	}
}

func open(t *testing.T, path, contents string) *Keyring {
	t.Helper()
	if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFind(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "keys"), "keys: [{name: a, key: "+alice+"}, {name: b, sha256: "+hashOf(bob)+"}]")
	for secret, want := range map[string]string{alice: "a", bob: "b", carol: "", "": "", alice + "x": "", hashOf(bob): "", strings.Repeat("x", 1<<20): ""} {
		c := r.FindClient(secret)
		if (c != nil) != (want != "") || c != nil && c.Key().Name != want {
			t.Errorf("%.30q is the key of %v, want %q", secret, c, want)
		}
	}
}

// TestChange: a remaining client keeps its usage, a removed one is refused, and an invalid file changes
// nothing. Time is virtual.
func TestChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	synctest.Test(t, func(t *testing.T) {
		r := open(t, path, "keys: [{name: a, key: "+alice+", requests_per_minute: 2}, {name: b, key: "+bob+"}]")
		var out bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx, slog.New(slog.NewTextHandler(&out, nil))) }()
		change := func(contents string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
				t.Fatal(err)
			}
			<-time.After(3 * reload.PollInterval)
			synctest.Wait()
		}
		a, b := r.FindClient(alice), r.FindClient(bob)
		first, second := a.AdmitRequest(), a.AdmitRequest()
		if first.Exceeded != limit.None || second.Exceeded != limit.None || b.AdmitRequest().Exceeded != limit.None {
			t.Fatal("a request within the limits was refused")
		}
		a.SpendTokens(10, 5)
		change("keys: [{name: a, key: [" + alice + ", " + carol + "], requests_per_minute: 2, max_inflight: 9}]")
		if r.FindClient(bob) != nil {
			t.Error("a key that is gone is good")
		}
		if r.FindClient(carol) != a || r.FindClient(alice) != a || a.Key().Limits.MaxInflight != 9 {
			t.Error("a key that changed is not the same client")
		}
		if v := a.AdmitRequest(); v.Exceeded != limit.Requests || v.Wait <= 0 || v.Wait > 30*time.Second {
			t.Errorf("what was used is forgotten: %+v", v)
		}
		change("keys: [{name: a, key: " + alice + ", sha256: oops}]")
		if r.FindClient(carol) != a {
			t.Error("a broken file took a key away")
		}
		if text := out.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "64 hexadecimal") || strings.Contains(text, "sk-") {
			t.Errorf("logged %s", text)
		}
		b.FinishRequest() // a request which outlives its key
		a.FinishRequest()
		var got []string
		r.EachUsage(func(name string, u Usage) { got = append(got, fmt.Sprintf("%s %+v", name, u)) })
		if want := "[a {Requests:2 Refused:[0 1 0 0] Prompt:10 Output:5 Inflight:1}]"; fmt.Sprint(got) != want {
			t.Errorf("usage %v, want %s", got, want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestTogether uses a keyring concurrently, for the race detector.
func TestTogether(t *testing.T) {
	file := "keys: [{name: a, key: " + alice + ", max_inflight: 4}]"
	r := open(t, filepath.Join(t.TempDir(), "keys"), file)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if c := r.FindClient(alice); c.AdmitRequest().Exceeded == limit.None {
					c.SpendTokens(1, 1)
					c.FinishRequest()
				}
			}
		})
	}
	all.Go(func() {
		for range 50 {
			if err := r.applyFile([]byte(file)); err != nil {
				t.Error(err)
			}
			r.EachUsage(func(string, Usage) {})
		}
	})
	all.Wait()
	r.EachUsage(func(_ string, u Usage) {
		if u.Inflight != 0 || u.Requests+u.Refused[limit.Inflight] != 1600 || u.Prompt != u.Requests {
			t.Errorf("%+v", u)
		}
	})
}

// FuzzParse: no file crashes the parser, and accepted keys are complete.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"keys: [{name: a, key: " + alice + ", admin: true, models: [x], max_inflight: 3}]",
		"keys:\n  - name: b\n    sha256: " + hashOf(bob) + "\n    tokens_per_minute: 5\n",
		"keys: &a [*a]", "keys: [{<<: {name: a}}]", "{}", "- ", "keys: [{name: !!binary aGk=, key: [a, b]}]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := ParseFile(data)
		if err != nil {
			return
		}
		names, digests := map[string]bool{}, map[digest]bool{}
		for _, k := range all {
			if k.Name == "" || names[k.Name] || len(k.digests) == 0 || k.Limits.Validate() != nil || k.Models != nil && len(k.Models) == 0 {
				t.Fatalf("%+v", k)
			}
			names[k.Name] = true
			for _, d := range k.digests {
				if digests[d] {
					t.Fatalf("%+v has another's key", k)
				}
				digests[d] = true
			}
		}
		if len(all) == 0 {
			t.Fatal("no keys")
		}
		if s, err := PickSecret(data); err == nil && !digests[sha256.Sum256([]byte(s))] {
			t.Fatal("the secret is none of the keys")
		}
	})
}
