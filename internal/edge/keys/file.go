package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"penstock/core/limit"
	"penstock/internal/reload"
)

// Bounds of a key file.
const (
	maxKeys    = 1024 // names
	maxSecrets = 8    // of one name
	maxModels  = 256  // of one name
	maxName    = 64   // bytes
	maxModel   = 256  // bytes
	minSecret  = 16   // bytes
	maxSecret  = 512  // bytes
)

// keyFields lists the fields of a key, for errors.
const keyFields = "name, key, sha256, admin, models, requests_per_minute, tokens_per_minute, max_inflight"

// ParseFile parses a key file: YAML with the one member keys, a list of keys. It reports every problem at
// once, with its line. Of the file's contents, errors quote only valid names: a misplaced value may be a key.
func ParseFile(data []byte) ([]Key, error) {
	list, err := keyNodes(data)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("there are no keys: every request would be refused")
	}
	if len(list) > maxKeys {
		return nil, fmt.Errorf("there are %d keys, at most %d are allowed", len(list), maxKeys)
	}
	p := fileParser{names: map[string]int{}, digests: map[digest]int{}}
	all := make([]Key, 0, len(list))
	for _, n := range list {
		all = append(all, p.parseKey(n))
	}
	return all, errors.Join(p.problems...)
}

// ReadSecret returns a key of a key file which its owner can present to a process, as PickSecret does.
func ReadSecret(path string) (key string, err error) {
	_, err = reload.Open("API keys", func(contents [][]byte) error {
		key, err = PickSecret(contents[0])
		return err
	}, path)
	return key, err
}

// PickSecret returns a plain-text key of a key file for use by a client: the first admin key, else the first.
func PickSecret(data []byte) (string, error) {
	if _, err := ParseFile(data); err != nil {
		return "", err
	}
	list, err := keyNodes(data)
	if err != nil {
		return "", err
	}
	found := ""
	for _, n := range list {
		secret, admin := "", false
		for i := 0; i+1 < len(n.Content); i += 2 {
			switch v := n.Content[i+1]; n.Content[i].Value {
			case "key":
				secret = v.Value
				if v.Kind == yaml.SequenceNode {
					secret = v.Content[0].Value
				}
			case "admin":
				admin = v.Value == "true"
			}
		}
		switch {
		case secret != "" && admin:
			return secret, nil
		case found == "":
			found = secret
		}
	}
	if found == "" {
		return "", errors.New("the file has hashes of keys only: give the key itself")
	}
	return found, nil
}

var linePattern = regexp.MustCompile(`line ([0-9]+)`)

// keyNodes returns the nodes of the list of keys.
func keyNodes(data []byte) ([]*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		at := ""
		if m := linePattern.FindStringSubmatch(err.Error()); m != nil {
			at = " at line " + m[1]
		}
		return nil, fmt.Errorf("this is not YAML%s", at) // the cause may quote a key
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode || len(root.Content) != 2 || root.Content[0].Value != "keys" || root.Content[1].Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: want the one member \"keys:\" with a list of keys", root.Line)
	}
	return root.Content[1].Content, nil
}

type fileParser struct {
	names    map[string]int // lines
	digests  map[digest]int
	problems []error
}

func (p *fileParser) report(n *yaml.Node, format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf("line %d: %s", n.Line, fmt.Sprintf(format, args...)))
}

// parseKey parses one key.
func (p *fileParser) parseKey(n *yaml.Node) (k Key) {
	if n.Kind != yaml.MappingNode {
		p.report(n, "a key has the fields %s", keyFields)
		return k
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		field, value := n.Content[i], n.Content[i+1]
		if name := field.Value; seen[name] {
			p.report(field, "a field of this key is given twice")
			continue
		}
		seen[field.Value] = true
		switch field.Value {
		case "name":
			k.Name = p.parseName(value)
		case "key":
			p.parseSecrets(&k, value, digestSecret)
		case "sha256":
			p.parseSecrets(&k, value, decodeDigest)
		case "admin":
			k.Admin = p.parseBool(value)
		case "models":
			k.Models = p.parseModels(value)
		case "requests_per_minute":
			k.Limits.RequestsPerMinute = p.parseLimit(value)
		case "tokens_per_minute":
			k.Limits.TokensPerMinute = p.parseLimit(value)
		case "max_inflight":
			k.Limits.MaxInflight = p.parseLimit(value)
		default:
			p.report(field, "there is no such field; the fields are %s", keyFields)
		}
	}
	if !seen["name"] {
		p.report(n, "this key has no name")
	}
	if !seen["key"] && !seen["sha256"] {
		p.report(n, "this entry has neither key nor sha256")
	}
	return k
}

func (p *fileParser) parseName(n *yaml.Node) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if n.Kind != yaml.ScalarNode || n.Value == "" || len(n.Value) > maxName || strings.Trim(n.Value, letters) != "" {
		p.report(n, "name must be 1 to %d letters, digits, '-', '_' or '.'", maxName)
		return ""
	}
	if line, twice := p.names[n.Value]; twice {
		p.report(n, "the name %s is taken by the key of line %d; a key that changes may have two values for a time: key: [OLD, NEW]", n.Value, line)
	}
	p.names[n.Value] = n.Line
	return n.Value
}

// parseSecrets parses one secret or a list of them.
func (p *fileParser) parseSecrets(k *Key, n *yaml.Node, read func(string) (digest, string)) {
	each := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		each = n.Content
	}
	if len(each) == 0 || len(each)+len(k.digests) > maxSecrets {
		p.report(n, "an entry has 1 to %d keys", maxSecrets)
		return
	}
	for _, s := range each {
		d, wrong := digest{}, "want a text"
		if s.Kind == yaml.ScalarNode {
			d, wrong = read(s.Value)
		}
		if wrong != "" {
			p.report(s, "%s", wrong)
			continue
		}
		if line, twice := p.digests[d]; twice {
			p.report(s, "this key is that of line %d", line)
		}
		p.digests[d] = s.Line
		k.digests = append(k.digests, d)
	}
}

func digestSecret(s string) (d digest, wrong string) {
	if len(s) < minSecret || len(s) > maxSecret || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return d, fmt.Sprintf("a key has %d to %d printable characters of ASCII and no spaces; openssl rand -hex 24 makes one", minSecret, maxSecret)
	}
	return sha256.Sum256([]byte(s)), ""
}

func decodeDigest(s string) (d digest, wrong string) {
	if n, err := hex.Decode(d[:], []byte(s[:min(len(s), 2*len(d))])); err != nil || n != len(d) || len(s) != 2*len(d) {
		return d, "sha256 is the hash of the key in 64 hexadecimal digits; printf %s \"$KEY\" | sha256sum makes it"
	}
	return d, ""
}

func (p *fileParser) parseBool(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.ScalarNode && n.Value == "true":
		return true
	case n.Kind != yaml.ScalarNode || n.Value != "false":
		p.report(n, "admin is true or false")
	}
	return false
}

func (p *fileParser) parseLimit(n *yaml.Node) int {
	v, err := strconv.Atoi(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode || v < 1 || v > limit.MaxLimit {
		p.report(n, "a limit is a whole number between 1 and %d; leave it out for none", limit.MaxLimit)
		return 0
	}
	return v
}

func (p *fileParser) parseModels(n *yaml.Node) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > maxModels {
		p.report(n, "models is a list of 1 to %d names; leave it out for all", maxModels)
		return nil
	}
	models := make([]string, 0, len(n.Content))
	for _, m := range n.Content {
		if m.Kind != yaml.ScalarNode || m.Value == "" || len(m.Value) > maxModel {
			p.report(m, "the name of a model has 1 to %d bytes", maxModel)
			continue
		}
		models = append(models, m.Value)
	}
	return models
}
