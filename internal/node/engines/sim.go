package engines

import (
	"cmp"
	"fmt"
	"slices"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
)

// OpenSim makes simulated engines. They share their output text; each has its own jitter.
func OpenSim(cfg *config.Loaded, pipe *prep.Pipeline, ref engine.TokenizerRef) ([]Local, error) {
	simulated, err := cfg.ResolveSimulation()
	if err != nil {
		return nil, err
	}
	m, err := readSimulatedModel(cfg, pipe)
	if err != nil {
		return nil, err
	}
	moe, err := cfg.ParseMoE()
	if err != nil {
		return nil, err
	}
	cxl, err := cfg.ParseCXL()
	if err != nil {
		return nil, err
	}
	faults, err := sim.ParseMediaFaults(cfg.Simulation.MediaFaults)
	if err != nil {
		return nil, err
	}
	sc := sim.Config{
		Name:          cfg.ModelName(),
		Tokenizer:     ref,
		Vocabulary:    m.vocabulary,
		Media:         mediaKindsOf(pipe),
		Text:          sim.BuiltinText(plainEncoder(pipe.Tokenizer)),
		Output:        cfg.Simulation.Output,
		BlockSize:     cfg.Engine.BlockSize,
		Blocks:        cfg.CacheBlocks(),
		ContextLength: m.context,
		MaxSeqs:       simulated.MaxSeqs,
		TokenBudget:   simulated.TokenBudget,
		MaxWaiting:    cfg.Engine.MaxWaiting,
		MoE:           moe,
		Timing:        simulated.Timing,
		Clock:         sim.ClockPrecise,

		EmbeddingCache: cfg.EmbeddingCacheBytes(),
		Encoders:       simulated.Encoders,
		MediaFaults:    faults,
	}
	if len(cfg.Engine.ServedModelName) > 0 {
		sc.Aliases = cfg.Engine.ServedModelName[1:]
	}
	if cfg.Simulation.Text == config.SimEcho {
		sc.Script = sim.ScriptEcho
	}
	if cfg.Simulation.PrefixCaching == config.Off {
		sc.Reuse = paged.Off
	}
	if cfg.Simulation.ChunkedPrefill == config.Off {
		if longest := min(m.context, sc.Blocks*sc.BlockSize); sc.TokenBudget < longest {
			return nil, fmt.Errorf("sim-chunked-prefill: without it a step must hold the longest prompt, %d tokens, and max-num-batched-tokens is %d; raise that, or lower sim-context-length", longest, sc.TokenBudget)
		}
		sc.Chunking = paged.Off
	}
	if cxl.Blocks > 0 {
		if sc.Pool, err = sim.NewSharedPool(cxl.Pool, cxl.Blocks, cxl.Delay); err != nil {
			return nil, err
		}
	}
	all := make([]Local, Count(cfg))
	for i := range all {
		sc.PoolWorker = kv.Worker{ID: kv.WorkerID(i + 1)} // as up numbers its workers
		sc.Worker = cfg.Fleet.WorkerID + uint64(i)
		if all[i], err = sim.New(sc); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// mediaKindsOf returns the media kinds that a pipeline's prompts can contain, ascending.
func mediaKindsOf(pipe *prep.Pipeline) (kinds []string) {
	if pipe.Family == nil {
		return nil
	}
	for _, k := range prep.MediaKinds() {
		if pipe.Family.Supports(k) {
			kinds = append(kinds, k.String())
		}
	}
	slices.Sort(kinds)
	return kinds
}

// simulatedModel holds the facts which a simulated model takes from the model it stands for.
type simulatedModel struct {
	vocabulary sim.Vocabulary
	context    int // in tokens
}

// longContext is the context of a simulated model which stands for no checkpoint, in tokens.
const longContext = 262144

// readSimulatedModel returns the facts of the model to simulate: the built-in model, or a checkpoint, whose
// small files it reads.
func readSimulatedModel(cfg *config.Loaded, pipe *prep.Pipeline) (simulatedModel, error) {
	if cfg.Engine.ModelPath == "" {
		v, err := builtinVocabulary()
		return simulatedModel{sim.Vocabulary{Size: v.Size, Mask: v.Mask, EOS: v.EOS}, cmp.Or(cfg.Simulation.ContextLength, longContext)}, err
	}
	of, err := readModelFacts(cfg.Engine.ModelPath, pipe)
	if err != nil {
		return simulatedModel{}, fmt.Errorf("model %s: %w", cfg.ModelName(), err)
	}
	m := simulatedModel{context: cmp.Or(cfg.Simulation.ContextLength, of.context, longContext)}
	m.vocabulary = sim.Vocabulary{Size: of.vocabulary, EOS: of.eos}
	if t, ok := pipe.Tokenizer.(*token.Tokenizer); ok {
		m.vocabulary.Mask = t.MaskedIDs()
	}
	return m, nil
}

// plainEncoder returns a function that encodes text as it is, without special tokens.
func plainEncoder(t prep.Tokenizer) func(string) []kv.Token {
	return func(text string) []kv.Token { return t.Encode(nil, text, prep.EncodeOptions{}) }
}
