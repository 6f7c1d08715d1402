package enginemock

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"penstock/core/media"
)

// ECRole is the part of a vLLM in the transfer of encoder outputs (ec_role of --ec-transfer-config).
type ECRole string

// The roles. A producer encodes, stores and generates nothing.
const (
	NoECRole   ECRole = ""
	ECProducer ECRole = "producer"
	ECConsumer ECRole = "consumer"
	ECBoth     ECRole = "both"
)

// ECRoles returns the roles, as settings name them.
func ECRoles() []ECRole { return []ECRole{ECProducer, ECConsumer, ECBoth} }

// ECStats are figures of encoder outputs since the start.
type ECStats struct {
	// Encoded are runs of the encoder, Loaded outputs which came from the store.
	Encoded, Loaded int
	// Missing are outputs which a request named and which were not in the store, so that the encoder ran;
	// Unknown belong to no object of the request.
	Missing, Unknown int
}

// encoderCache is what a server has of encoder outputs: its own, by the names of objects, and a directory which it
// shares with others, as vLLM's ECExampleConnector does. The lock of Server guards it.
type encoderCache struct {
	role  ECRole
	dir   string
	own   map[string]struct{}
	stats ECStats
}

// maxEncoded bounds a server's own outputs; it forgets all at once.
const maxEncoded = 1024

func (c *Config) newEncoderCache() encoderCache {
	return encoderCache{role: c.ECRole, dir: c.ECStore, own: map[string]struct{}{}}
}

func (e *encoderCache) produces() bool { return e.role == ECProducer || e.role == ECBoth }
func (e *encoderCache) consumes() bool { return e.role == ECConsumer || e.role == ECBoth }

// checkEC reports invalid settings of the transfer of encoder outputs.
func (c *Config) checkEC(report func(ok bool, format string, args ...any)) {
	report(c.ECRole == NoECRole || slices.Contains(ECRoles(), c.ECRole), "role %.40q of encoder outputs is not one of %q", c.ECRole, ECRoles())
	report((c.ECRole == NoECRole) == (c.ECStore == ""), "a role of encoder outputs and a directory for them need each other")
	report(c.ECRole == NoECRole || c.Dialect == VLLM, "encoder outputs are vLLM's: %s has no role for them", c.Dialect)
}

// ECStats returns the figures.
func (s *Server) ECStats() ECStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.encoded.stats
}

// ForgetEncoded empties the server's own outputs, as the engine does when others need their room.
func (s *Server) ForgetEncoded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mu.encoded.own)
}

// encodedPath is the file of an object's output. Names which are no file names cannot leave the directory.
func (e *encoderCache) encodedPath(id string) string {
	return filepath.Join(e.dir, url.PathEscape(id), "encoder_cache.safetensors")
}

// output is the content of an object's file: it says what it is of.
func (s *Server) output(o *promptMedia) []byte {
	return fmt.Appendf(nil, "%s\n%s\n%s %v\n", s.cfg.Root, o.id, o.kind, o.grid)
}

// encodeMedia makes the outputs of a prompt's media available: it takes them from the server's own, loads or encodes
// them, and stores what it encodes.
func (s *Server) encodeMedia(objects []promptMedia, given json.RawMessage) error {
	var named map[string]json.RawMessage
	_ = json.Unmarshal(given, &named) // else nothing is named, as the engine takes it
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &s.mu.encoded
	if e.role == NoECRole {
		return nil
	}
	for id := range named {
		if !slices.ContainsFunc(objects, func(o promptMedia) bool { return o.id == id }) {
			e.stats.Unknown++
		}
	}
	for i := range objects {
		o := &objects[i]
		if _, has := e.own[o.id]; has {
			continue
		}
		if err := s.obtainOutputLocked(o, named[o.id] != nil); err != nil {
			return err
		}
		if len(e.own) >= maxEncoded {
			clear(e.own)
		}
		e.own[o.id] = struct{}{}
	}
	return nil
}

// obtainOutputLocked loads an object's output, or encodes the object.
func (s *Server) obtainOutputLocked(o *promptMedia, named bool) error {
	e := &s.mu.encoded
	if e.consumes() {
		stored, err := os.ReadFile(e.encodedPath(o.id))
		switch {
		case err == nil && string(stored) != string(s.output(o)):
			return fmt.Errorf("the stored output of %s is of another object or model", o.id)
		case err == nil:
			e.stats.Loaded++
			return nil
		case named:
			e.stats.Missing++
		}
	}
	e.stats.Encoded++
	if !e.produces() {
		return nil
	}
	if _, lost := s.faults.takeDue(FaultLostEncoding); lost {
		return nil
	}
	path := e.encodedPath(o.id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, s.output(o), 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// readiesMedia makes the outputs of a call's media available, or answers with the engine's error.
func (s *Server) readiesMedia(w http.ResponseWriter, c *apiCall) bool {
	if nilIfNull(c.request.ECTransfer) != nil && s.consumesEncodings() {
		if _, hit := s.faults.takeDue(FaultEncodings); hit {
			s.failRequest(w, c.request.Stream)
			return false
		}
	}
	for i := range c.promptRequests {
		if err := s.encodeMedia(c.promptRequests[i].prompt.objects, c.request.ECTransfer); err != nil {
			s.failRequest(w, c.request.Stream)
			return false
		}
	}
	return true
}

func (s *Server) consumesEncodings() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.encoded.consumes()
}

// generatesNothing reports whether the server is a producer only.
func (s *Server) generatesNothing() bool { return s.cfg.ECRole == ECProducer }

// ecAnswer describes the outputs of a call's media, as a producer does: entries by the names of objects; nil of other
// servers, and if there are none.
func (s *Server) ecAnswer(c *apiCall) any {
	entries := map[string]*ecEntry{}
	if s.cfg.ECRole != ECProducer && s.cfg.ECRole != ECBoth {
		return nil
	}
	for i, o := range c.promptRequests[0].prompt.objects {
		e := entries[o.id]
		if e == nil {
			e = &ecEntry{Metadata: object{}}
			entries[o.id] = e
		}
		if o.grid != [3]int{} && o.kind != media.Audio {
			e.Metadata[o.kind.String()+"_grid_thw"] = o.grid
		}
		e.Indices = append(e.Indices, i)
	}
	if len(entries) == 0 {
		return nil
	}
	return entries
}

// ecEntry is an entry of ec_transfer_params.
type ecEntry struct {
	Indices  []int  `json:"item_indices"`
	Metadata object `json:"metadata"`
}

// answerNothing answers as a producer, whose requests end before their first token.
func (s *Server) answerNothing(w http.ResponseWriter, c *apiCall) {
	prompt := c.promptRequests[0].prompt
	if c.request.Stream {
		st := newSSEStream(w)
		if c.chat {
			st.writeEvent(s.chunkBody(c, []object{{"index": 0, "delta": object{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}}, nil))
		}
		st.writeDone()
		return
	}
	kind := "text_completion"
	if c.chat {
		kind = "chat.completion"
	}
	out := c.newBody(kind)
	part := outputPart{reason: reasonStop}
	choice := s.choiceBody(c, &part, true)
	if c.chat {
		choice["message"] = object{"role": "assistant", "content": "", "tool_calls": []object{}}
	} else {
		choice["text"] = ""
	}
	out["choices"], out["usage"] = []object{choice}, s.usageBody(usage{prompt: len(prompt.tokens)}, true)
	out["kv_transfer_params"], out["ec_transfer_params"] = nil, s.ecAnswer(c)
	writeJSON(w, http.StatusOK, out)
}
