package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/internal/config"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/mimic"
)

// SimServer says which engine a stand-alone server imitates, as a command line has it. The texts are
// those of package mimic.
type SimServer struct {
	Dialect, HTTPAddr                   string
	KVEvents, KVReplay, Snapshot, Topic string
	// Dial has the publisher of events connect, where others listen.
	Dial          bool
	Ranks, Slots  int
	BufferSteps   int
	Adapters      []string // NAME or NAME=PATH
	Faults        []string
	Features      []string
	Headers       []string // NAME=VALUE
	APIKeyFile    string
	KeepAlive     time.Duration
	Ping, Startup time.Duration
	// ExportModel is a directory to which the tokenizer and the facts of the built-in model are written,
	// which is then the root of the model that is served: so that others find its tokenizer. "" writes none.
	ExportModel string
}

// SimReady describes a server that imitates an engine and serves.
type SimReady struct {
	URL        string        `json:"url"`
	Dialect    string        `json:"dialect"`
	Model      string        `json:"model"`
	KVEvents   string        `json:"kv_events,omitempty"`
	KVReplay   string        `json:"kv_replay,omitempty"`
	Snapshot   string        `json:"kv_snapshot,omitempty"`
	Ranks      int           `json:"ranks"`
	BlockSize  int           `json:"block_size"`
	Blocks     int           `json:"blocks"`               // of each rank
	Simulation string        `json:"simulation,omitempty"` // model of time, for people
	Took       time.Duration `json:"took_ns"`
}

// SimDialects returns the dialects that there are.
func SimDialects() []string {
	var names []string
	for _, d := range mimic.Dialects() {
		names = append(names, string(d))
	}
	return names
}

// Sim serves as another engine does until ctx ends, and returns nil then. It calls ready once, when
// it listens.
func Sim(ctx context.Context, cfg *config.Loaded, as SimServer, stderr io.Writer, ready func(SimReady)) error {
	began := time.Now()
	log, err := newLogger(cfg, stderr)
	if err != nil {
		return err
	}
	mc, err := as.config()
	if err != nil {
		return err
	}
	if as.ExportModel != "" {
		if cfg, err = exported(cfg, as.ExportModel); err != nil {
			return err
		}
	}
	ref := chat.Ref{Kind: "builtin"}
	if cfg.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.ModelPath}
	}
	if mc.Pipe, err = chat.Open(ref); err != nil {
		return err
	}
	ref.Digest = mc.Pipe.Digest
	mc.Seed, mc.Root = cfg.SimSeed, cfg.ModelPath
	mc.Open = func(rank int) (engine.Engine, error) {
		one := *cfg
		one.WorkerID = uint64(rank)
		all, err := openSim(&one, mc.Pipe, engine.TokenizerRef(ref))
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	s, err := mimic.New(mc)
	if err != nil {
		return err
	}
	log.Info("serving", "dialect", as.Dialect, "url", s.URL())
	card := s.Card()
	ready(SimReady{
		URL: s.URL(), Dialect: as.Dialect, Model: s.Models()[0], KVEvents: s.EventsAddr(), KVReplay: s.ReplayAddr(), Snapshot: s.SnapshotAddr(),
		Ranks: as.Ranks, BlockSize: card.BlockSize, Blocks: card.Blocks, Simulation: cfg.SimulationText(), Took: time.Since(began),
	})
	return s.Run(ctx)
}

// exported writes the built-in model to a directory and returns the settings with which it is served from there.
func exported(cfg *config.Loaded, dir string) (*config.Loaded, error) {
	v, err := builtinVocabulary()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return nil, fmt.Errorf("export-model: %w", err)
	}
	facts := map[string]any{"vocab_size": v.Size, "max_position_embeddings": cmp.Or(cfg.SimContextLength, longContext), "eos_token_id": v.EOS}
	described, err := json.MarshalIndent(facts, "", "  ")
	if err != nil {
		return nil, err
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	for _, f := range []struct {
		name string
		data []byte
	}{{"tokenizer.json", tokenizer}, {"tokenizer_config.json", tokenizerConfig}, {"config.json", append(described, '\n')}} {
		if err := shareFile(filepath.Join(dir, f.name), f.data); err != nil {
			return nil, fmt.Errorf("export-model: %w", err)
		}
	}
	own := *cfg
	own.ModelPath = dir
	if len(own.ServedModelName) == 0 {
		own.ServedModelName = []string{cfg.ModelName()}
	}
	return &own, nil
}

// shareFile writes a file that others read while several processes write it, all the same:
// nobody sees a part of it.
func shareFile(path string, data []byte) error {
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, data) {
		return nil
	}
	if err := replaceFile(path, data); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// Validate reports everything that is wrong with the texts at once.
func (as *SimServer) Validate() error {
	_, err := as.config()
	return err
}

// config reads the texts, and reports every problem at once.
func (as *SimServer) config() (mimic.Config, error) {
	var errs []error
	mc := mimic.Config{
		Dialect: mimic.Dialect(as.Dialect), HTTPAddr: as.HTTPAddr, KVEvents: as.KVEvents, KVReplay: as.KVReplay, Snapshot: as.Snapshot, Topic: as.Topic,
		Ranks: as.Ranks, Slots: as.Slots, BufferSteps: as.BufferSteps, KeepAlive: as.KeepAlive, Ping: as.Ping, Startup: as.Startup, Headers: map[string]string{},
	}
	if as.Dial {
		mc.Dial = mimic.Connect
	}
	for _, text := range as.Adapters {
		name, path, found := strings.Cut(text, "=")
		if !found {
			path = name
		}
		mc.Adapters = append(mc.Adapters, mimic.Adapter{Name: name, Path: path})
	}
	for _, text := range as.Faults {
		f, err := mimic.ParseFault(text)
		errs = append(errs, err)
		mc.Faults = append(mc.Faults, f)
	}
	for _, text := range as.Features {
		errs = append(errs, mc.Features.Set(text))
	}
	for _, text := range as.Headers {
		name, value, found := strings.Cut(text, "=")
		if !found {
			errs = append(errs, fmt.Errorf("header %.80q is not NAME=VALUE", text))
		}
		mc.Headers[name] = value
	}
	if as.APIKeyFile != "" {
		key, err := os.ReadFile(as.APIKeyFile)
		errs = append(errs, err)
		mc.APIKey = strings.TrimSpace(string(key))
	}
	return mc, errors.Join(append(errs, mc.Validate())...)
}
