package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/media"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/enginemock"
)

// SimServer configures a stand-alone engine mock, as on the command line.
type SimServer struct {
	// Mock has the settings which need no parsing.
	Mock enginemock.Config
	// Connect makes the publisher of events connect to a listening subscriber.
	Connect bool
	// The formats of these come from package enginemock: NAME or NAME=PATH, NAME=VALUE, and KIND=N for how
	// many images, videos or sounds a prompt may contain.
	Adapters, Faults, Features, Headers, MediaLimits []string
	APIKeyFile                                       string
	// ExportModel is a directory to which the tokenizer and the facts of the built-in model are written. It
	// becomes the root of the served model, so that others find its tokenizer. "" writes none.
	ExportModel string
	// Family says how the exported model represents media: "qwen2-vl", or "" for a text-only model.
	Family string
}

// SimReady describes an engine mock that serves.
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
	Simulation string        `json:"simulation,omitempty"` // description of the simulated timing, for people
	Took       time.Duration `json:"took_ns"`
}

// SimDialects returns the known dialects.
func SimDialects() []string {
	var names []string
	for _, d := range enginemock.Dialects() {
		names = append(names, string(d))
	}
	return names
}

// SimEngineVersions returns the known releases of a dialect, the newest last; none if there is only one.
func SimEngineVersions(dialect string) []string {
	return enginemock.EngineVersions(enginemock.Dialect(dialect))
}

// RunSim serves as an engine mock until ctx ends, and then returns nil. It calls ready once, when it listens.
func RunSim(ctx context.Context, cfg *config.Loaded, as SimServer, stderr io.Writer, ready func(SimReady)) error {
	began := time.Now()
	log, err := newLogger(cfg, stderr)
	if err != nil {
		return err
	}
	mc, err := as.parseConfig()
	if err != nil {
		return err
	}
	if as.ExportModel != "" {
		if cfg, err = engines.ExportBuiltin(cfg, as.ExportModel, as.Family); err != nil {
			return err
		}
	}
	ref := chat.Ref{Kind: "builtin"}
	if cfg.Engine.ModelPath != "" {
		ref = chat.Ref{Kind: "dir", Dir: cfg.Engine.ModelPath}
	}
	if mc.Pipe, err = chat.Open(ref); err != nil {
		return err
	}
	ref.Digest = mc.Pipe.Digest
	mc.Seed, mc.Root = cfg.Simulation.Seed, cfg.Engine.ModelPath
	mc.Open = func(rank int) (engine.Engine, error) {
		one := *cfg
		one.Fleet.WorkerID = uint64(rank)
		all, err := engines.OpenSim(&one, mc.Pipe, engine.TokenizerRef(ref))
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	s, err := enginemock.New(mc)
	if err != nil {
		return err
	}
	log.Info("serving", "dialect", as.Mock.Dialect, "url", s.URL())
	card := s.Card()
	ready(SimReady{
		URL: s.URL(), Dialect: string(as.Mock.Dialect), Model: s.Models()[0], KVEvents: s.EventsAddr(), KVReplay: s.ReplayAddr(), Snapshot: s.SnapshotAddr(),
		Ranks: as.Mock.Ranks, BlockSize: card.BlockSize, Blocks: card.Blocks, Simulation: cfg.DescribeSimulation(), Took: time.Since(began),
	})
	return s.Run(ctx)
}

// Validate reports every invalid value at once.
func (as *SimServer) Validate() error {
	_, err := as.parseConfig()
	return err
}

// parseConfig parses the values, and reports every problem at once.
func (as *SimServer) parseConfig() (enginemock.Config, error) {
	var errs []error
	mc := as.Mock
	mc.Headers = map[string]string{}
	if as.Connect {
		mc.Dial = enginemock.Connect
	}
	for _, text := range as.Adapters {
		name, path, found := strings.Cut(text, "=")
		if !found {
			path = name
		}
		mc.Adapters = append(mc.Adapters, enginemock.Adapter{Name: name, Path: path})
	}
	for _, text := range as.Faults {
		f, err := enginemock.ParseFault(text)
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
	for _, text := range as.MediaLimits {
		kind, n, err := parseMediaLimit(text)
		errs = append(errs, err)
		if mc.MediaLimits == nil {
			mc.MediaLimits = map[media.Kind]int{}
		}
		mc.MediaLimits[kind] = n
	}
	if as.Family != "" && (as.Family != engines.FamilyQwen2VL || as.ExportModel == "") {
		errs = append(errs, fmt.Errorf("family %.40q: %s is there, for a model that is exported (--export-model); of a directory of one's own (--model-path) its files say it", as.Family, engines.FamilyQwen2VL))
	}
	mc.Fetch = fetchFile
	if as.APIKeyFile != "" {
		key, err := os.ReadFile(as.APIKeyFile)
		errs = append(errs, err)
		mc.APIKey = strings.TrimSpace(string(key))
	}
	if err := config.CheckAddress(as.Mock.HTTPAddr); err != nil {
		errs = append(errs, fmt.Errorf("http-addr: %w", err))
	}
	return mc, errors.Join(append(errs, mc.Validate())...)
}

// parseMediaLimit parses KIND=N.
func parseMediaLimit(text string) (kind media.Kind, n int, err error) {
	name, number, _ := strings.Cut(text, "=")
	for _, kind := range prep.MediaKinds() {
		if kind.String() == name {
			n, err := strconv.Atoi(number)
			if err != nil || n < 0 {
				return 0, 0, fmt.Errorf("limit %.40q: want a number of 0 or more", text)
			}
			return kind, n, nil
		}
	}
	return 0, 0, fmt.Errorf("limit %.40q is not image=N, video=N or audio=N", text)
}

// The limits of a file that a simulated server fetches.
const (
	simFetchTimeout = 10 * time.Second
	simFetchBytes   = 64 << 20
)

// fetchFile returns the content of a URL, as the mocked engines fetch it: from any host they can reach.
func fetchFile(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, simFetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%d, message=%q", res.StatusCode, http.StatusText(res.StatusCode))
	}
	return io.ReadAll(io.LimitReader(res.Body, simFetchBytes))
}
