package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

// TestRoleNames: every role is read back from its name, and nothing else is a role.
func TestRoleNames(t *testing.T) {
	for name, want := range map[string]struct {
		role  Role
		takes bool
	}{
		"aggregated": {RoleAggregated, true}, "prefill": {RolePrefill, false}, "decode": {RoleDecode, true}, "encode": {RoleEncode, false},
	} {
		r, err := ParseRole(name)
		if err != nil || r != want.role || r.String() != name || r.TakesRequests() != want.takes {
			t.Errorf("%s: role %q, takes requests %v, error %v", name, r, r.TakesRequests(), err)
		}
		for _, encoder := range []string{"", "weights"} {
			c := Card{Role: r, Encoder: encoder}
			unused := r == RolePrefill || r == RoleEncode && encoder == ""
			if w, ok := c.UnusedRoleWarning(); ok != unused || ok != strings.Contains(w.Detail, "role "+name+" serves nothing") || ok != (w.Code == WarnRoleUnused) {
				t.Errorf("%s with encoder %q: warning %+v", name, encoder, w)
			}
		}
	}
	for _, name := range []string{"", "Prefill", "worker", "router"} {
		if r, err := ParseRole(name); err == nil || !strings.Contains(err.Error(), "aggregated, prefill, decode or encode") {
			t.Errorf("%q is the role %q: %v", name, r, err)
		}
	}
}

// TestRolesAgree: cards of prefill and encode workers differ from a model's only in what those workers must
// share with it.
func TestRolesAgree(t *testing.T) {
	others := func(c *Card) {
		c.BlockSize, c.ContextLength, c.Aliases, c.EOS = 128, 99, nil, nil
		c.DefaultMaxTokens, c.ToolParser, c.Tokenizer = 1, "hermes", TokenizerRef{}
	}
	for _, c := range []struct {
		name   string
		role   Role
		change func(*Card)
		field  string // in which the cards differ
	}{
		{"decode", RoleDecode, func(*Card) {}, ""},
		{"decode, other block size", RoleDecode, func(c *Card) { c.BlockSize = 128 }, "block_size"},
		{"decode, other numerics", RoleDecode, func(c *Card) { c.Numerics = "other" }, ""},
		{"prefill", RolePrefill, others, ""},
		{"prefill, other media", RolePrefill, func(c *Card) { c.Media = []string{"video"} }, ""},
		{"prefill, other numerics", RolePrefill, func(c *Card) { c.Numerics = "other" }, "numerics"},
		{"encode", RoleEncode, others, ""},
		{"encode, other numerics", RoleEncode, func(c *Card) { c.Numerics = "other" }, ""},
		{"encode, other media", RoleEncode, func(c *Card) { c.Media = []string{"video"} }, "media"},
		{"encode, other weights", RoleEncode, func(c *Card) { c.Encoder = "other" }, "encoder"},
		{"encode, unknown weights", RoleEncode, func(c *Card) { c.Encoder = "" }, ""},
		{"prefill, other encoder", RolePrefill, func(c *Card) { c.Encoder = "other" }, ""},
		{"encode, other settings", RoleEncode, func(c *Card) { c.ProcessorArgs = `{"a":1}` }, "mm_processor_kwargs"},
	} {
		served, card := goodCard(), goodCard()
		served.Encoder, card.Encoder = "weights", "weights"
		card.Role = c.role
		c.change(&card)
		field, mine, theirs, differ := card.FirstDifference(&served)
		if field != c.field || differ != (c.field != "") {
			t.Errorf("%s: the card differs in %q", c.name, field)
		}
		if back, yours, ours, differ := served.FirstDifference(&card); back != field || yours != theirs || ours != mine || differ != (c.field != "") {
			t.Errorf("%s: the model's card differs in %q", c.name, back)
		}
	}
}

// TestRoleChecksumBytes: the canonical form is the one of docs/format/engine.md.
func TestRoleChecksumBytes(t *testing.T) {
	for _, c := range []struct {
		role  Role
		lines string
	}{
		{RolePrefill, "role \"prefill\"\nname \"m\"\nnumerics \"n\"\n"},
		{RoleEncode, "role \"encode\"\nname \"m\"\nmedia [\"image\"]\nmm_processor_kwargs \"{}\"\n"},
	} {
		card := goodCard()
		card.Name, card.Role, card.Numerics, card.Media, card.ProcessorArgs = "m", c.role, "n", []string{"image"}, "{}"
		sum := sha256.Sum256([]byte(c.lines))
		if got := card.Checksum(); got != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: checksum %s", c.role, got)
		}
	}
	card, decode := goodCard(), goodCard()
	decode.Role = RoleDecode
	if card.Checksum() != decode.Checksum() {
		t.Error("a decode worker's card has another checksum than an aggregated worker's")
	}
}

// TestRoleCardsOfOtherBuilds: a build without roles, which drops the field, reads the card of a decode worker
// and refuses cards of workers to which it must not send requests.
func TestRoleCardsOfOtherBuilds(t *testing.T) {
	for role, refused := range map[Role]bool{RoleDecode: false, RolePrefill: true, RoleEncode: true} {
		card := goodCard()
		card.Role = role
		b, err := EncodeCard(card)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeCard(b); err != nil || got.Role != role {
			t.Errorf("%s: the card has role %q: %v", role, got.Role, err)
		}
		text := strings.Replace(string(b), `"role":"`+string(role)+`",`, "", 1)
		if len(text) == len(b) {
			t.Fatalf("no role in %s", b)
		}
		if _, err := DecodeCard([]byte(text)); (err != nil) != refused || refused && !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s without its role: %v", role, err)
		}
	}
}
