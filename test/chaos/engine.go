package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/enginemock"
	"penstock/test/fleet"
)

// engineCommand is the argument with which this program runs as an engine for a scenario.
const engineCommand = "serve-engine"

// serveEngine runs a vLLM engine mock around an engine which computes, so that another one can continue its
// responses to the token, until ctx ends. args are a directory with the tokenizer and the addresses of HTTP,
// events and replay.
func serveEngine(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("%s: want DIR HTTP EVENTS REPLAY", engineCommand)
	}
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: args[0]})
	if err != nil {
		return err
	}
	size := pipe.Tokenizer.VocabSize()
	s, err := enginemock.New(enginemock.Config{
		Dialect: enginemock.VLLM, Pipe: pipe, Models: []string{fleet.Model}, Root: args[0], Seed: 1,
		HTTPAddr: args[1], KVEvents: "tcp://" + args[2], KVReplay: "tcp://" + args[3],
		Open: func(int) (engine.Engine, error) {
			return tiny.New(ctx, tiny.Config{Name: fleet.Model, Vocabulary: tiny.Vocabulary{Size: size}, BlockSize: 16, Blocks: 2048})
		},
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// mockEngines are processes of that kind.
type mockEngines struct {
	dir  string // of the tokenizer
	all  []*fleet.Process
	http []string
	spec []string // the engine flag of each worker
}

// startEngines starts n engines.
func (e *testEnv) startEngines(ctx context.Context, n int) (_ *mockEngines, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e.fleets++
	g := &mockEngines{dir: filepath.Join(e.dir, fmt.Sprintf("%02d-%s-engines", e.fleets, e.name))}
	if err := writeTokenizer(g.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.stopAll())
		}
	}()
	for i := range n {
		var addrs [3]string
		for j := range addrs {
			if addrs[j], err = e.ports.ReserveAddr("127.0.0.1"); err != nil {
				return nil, err
			}
		}
		p := fleet.NewProcess(fmt.Sprintf("engine-%d", i+1), filepath.Join(g.dir, fmt.Sprintf("engine-%d.log", i+1)), self, engineCommand, g.dir, addrs[0], addrs[1], addrs[2])
		if err := p.Start(); err != nil {
			return nil, err
		}
		g.all = append(g.all, p)
		g.http = append(g.http, "http://"+addrs[0])
		g.spec = append(g.spec, fmt.Sprintf("vllm=http://%s,events=tcp://%s,replay=tcp://%s", addrs[0], addrs[1], addrs[2]))
	}
	return g, nil
}

// writeTokenizer writes the built-in model's tokenizer and configuration to a directory.
func writeTokenizer(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	builtin, err := token.Builtin()
	if err != nil {
		return err
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	for name, data := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": tokenizerConfig,
		"config.json": fmt.Appendf(nil, `{"vocab_size":%d,"max_position_embeddings":4096}`, builtin.VocabSize()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// stopAll stops them.
func (g *mockEngines) stopAll() error {
	var errs []error
	for _, p := range g.all {
		_ = p.Resume() // a paused process would not get the signal
		errs = append(errs, p.Stop(10*time.Second))
	}
	return errors.Join(errs...)
}

// setFaults replaces the faults of an engine.
func (g *mockEngines) setFaults(ctx context.Context, i int, faults ...enginemock.Fault) error {
	body, err := json.Marshal(map[string]any{"faults": append([]enginemock.Fault{}, faults...)})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.http[i]+"/admin/faults", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("faults of engine %d: status %d", i+1, resp.StatusCode)
	}
	return nil
}
