package remote

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/accuracy"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/media/family"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// The timeouts of the count comparison: one request to the engine, and all of them.
const (
	countTimeout  = time.Minute
	countsTimeout = 5 * time.Minute
)

// CountingText is the text next to the object in the conversations that are compared.
const CountingText = "What is this?"

// MediaCounting says how the tokens of media are counted by Penstock and by the engine, to be compared once
// per engine start.
type MediaCounting struct {
	Family *family.Family
	// LocalPrompt returns the prompt of a conversation by Penstock's count: one user message with an object
	// and then CountingText, or the text alone if url is "". url is a data: URI. The prompt is not kept.
	LocalPrompt func(ctx context.Context, kind media.Kind, url string) (MediaPrompt, error)
	// EngineTokens returns how many tokens the engine makes of a prompt, for engines that take media with
	// tokens; nil for others, which get a client's request.
	EngineTokens func(ctx context.Context, prompt *MediaPrompt) (int, error)
	// RenderTokens returns how many tokens the engine makes of the body of a chat request, without generating
	// any; nil if it has no such endpoint: then the engine generates one token and reports them.
	RenderTokens func(ctx context.Context, body []byte) (int, error)
}

// MediaPrompt is a prompt with its media, as in an engine.Request.
type MediaPrompt struct {
	Tokens  []kv.Token
	Media   []kv.Media
	Objects []media.Object
}

// MediaCounting returns how counts are compared for an engine with this card; nil if they are not, since
// nothing depends on them or the settings disable it. render may be nil, see MediaCounting.RenderTokens.
func (o *OpenConfig) MediaCounting(card *engine.Card, render func(ctx context.Context, body []byte) (int, error)) *MediaCounting {
	if o.EnginePrompts || o.LocalPrompt == nil || o.Family == nil || card.MediaKeys == "" && !card.AcceptsObjects || o.Spec.Rank > 0 {
		return nil
	}
	return &MediaCounting{Family: o.Family, LocalPrompt: o.LocalPrompt, RenderTokens: render}
}

// mediaCounts is the result of the comparison of an engine's media token counts.
type mediaCounts struct {
	recount chan struct{} // of capacity 1: the engine restarted
	first   chan struct{} // closed when the first comparison has ended
	mu      struct {
		sync.Mutex
		checks  []engine.MediaCheck
		kinds   []string // miscounted kinds, ascending; never changed in place
		changed chan struct{}
	}
}

func newMediaCounts() *mediaCounts {
	c := &mediaCounts{recount: make(chan struct{}, 1), first: make(chan struct{})}
	c.mu.changed = make(chan struct{})
	return c
}

// requestRecount asks for another comparison: the engine restarted, perhaps with other settings.
func (c *mediaCounts) requestRecount() {
	select {
	case c.recount <- struct{}{}:
	default:
	}
}

// setChecks sets the results.
func (c *mediaCounts) setChecks(checks []engine.MediaCheck) {
	var kinds []string
	for i := range checks {
		if checks[i].Differs() {
			kinds = append(kinds, checks[i].Kind)
		}
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.checks = checks
	if !slices.Equal(kinds, c.mu.kinds) {
		close(c.mu.changed)
		c.mu.kinds, c.mu.changed = kinds, make(chan struct{})
	}
}

// current returns the miscounted kinds, and a channel that is closed when they change.
func (c *mediaCounts) current() (kinds []string, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.kinds, c.mu.changed
}

// MediaChecks implements [engine.MediaCheckSource].
func (b *Base) MediaChecks() []engine.MediaCheck {
	b.mediaCounts.mu.Lock()
	defer b.mediaCounts.mu.Unlock()
	return slices.Clone(b.mediaCounts.mu.checks)
}

// WatchMediaCounts implements [engine.MediaCountWatcher].
func (b *Base) WatchMediaCounts(ctx context.Context, sink func([]string)) error {
	for {
		kinds, changed := b.mediaCounts.current()
		sink(slices.Clone(kinds))
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// watchMediaCounts compares counts at each start of the engine. Nothing waits for it, and the health of the
// engine is not judged by its requests.
func (b *Base) watchMediaCounts(ctx context.Context) {
	if b.cfg.MediaCounting == nil {
		return
	}
	for first := true; ; first = false {
		bounded, cancel := context.WithTimeout(ctx, countsTimeout)
		checks := b.compareCounts(bounded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		b.mediaCounts.setChecks(checks)
		if first {
			close(b.mediaCounts.first)
		}
		select {
		case <-b.mediaCounts.recount:
		case <-ctx.Done():
			return
		}
	}
}

// AwaitStartChecks implements [engine.StartChecker].
func (b *Base) AwaitStartChecks(ctx context.Context) {
	for b.cfg.ProveSalts {
		state, changed := b.salts.routeState(b.mainRoute())
		if state != saltsUntested {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
	if b.cfg.MediaCounting == nil {
		return
	}
	select {
	case <-b.mediaCounts.first:
	case <-ctx.Done():
	}
}

// compareCounts compares the counts of each sample, minus the counts of a conversation without one: templates
// may differ in what they write around a conversation.
func (b *Base) compareCounts(ctx context.Context) []engine.MediaCheck {
	card := b.Card()
	all := mediaSamples(b.cfg.MediaCounting.Family, card.Media, card.ContextLength)
	if len(all) == 0 {
		return nil
	}
	base, err := b.compareSample(ctx, mediaSample{})
	checks := make([]engine.MediaCheck, len(all))
	for i, s := range all {
		c := &checks[i]
		c.Sample, c.Kind = s.name, s.kind.String()
		both, failed := base, err
		if failed == nil {
			both, failed = b.compareSample(ctx, s)
		}
		if ctx.Err() != nil {
			failed = ctx.Err()
		}
		if failed != nil {
			c.Unchecked = SanitizeMessage(failed.Error())
			b.log.Info("the engine's count of media is not checked", "sample", s.name, "error", failed)
			continue
		}
		c.Counted, c.Reported = both.local-base.local, both.engine-base.engine
	}
	return checks
}

// countPair is the tokens of a prompt by Penstock's count and by the engine's.
type countPair struct{ local, engine int }

// compareSample returns both counts of the conversation that shows a sample, or none.
func (b *Base) compareSample(ctx context.Context, s mediaSample) (c countPair, err error) {
	shown, err := b.cfg.MediaCounting.LocalPrompt(ctx, s.kind, s.url)
	if err != nil {
		return c, fmt.Errorf("it is not counted here: %w", err)
	}
	c.local = len(shown.Tokens)
	b.cache.noteShownMedia(&shown) // so that the events about its media are understood
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	if b.cfg.MediaCounting.EngineTokens != nil {
		c.engine, err = b.cfg.MediaCounting.EngineTokens(ctx, &shown)
		return c, err
	}
	body := b.countRequestBody(s, shown.Objects)
	if b.cfg.MediaCounting.RenderTokens != nil {
		if c.engine, err = b.cfg.MediaCounting.RenderTokens(ctx, body); fault.CodeOf(err) != fault.Unimplemented {
			return c, err
		}
	}
	c.engine, err = b.reportedPromptTokens(ctx, body)
	return c, err
}

// countRequestBody returns the body of a chat request for one token about a sample, or about none. objects
// are its media.
func (b *Base) countRequestBody(s mediaSample, objects []media.Object) []byte {
	body := strictjson.AppendString([]byte(`{"model":`), b.upstreamModel(""))
	body = append(body, `,"max_tokens":1,"temperature":0,"messages":[{"role":"user","content":[`...)
	if s.url != "" {
		name := ""
		if b.cfg.Card.MediaKeys == engine.MediaKeysUUID && len(objects) > 0 {
			name = objects[0].Key.UUID()
		}
		body = append(appendPart(body, s.kind, s.url, name), ',')
	}
	return append(body, `{"type":"text","text":"`+CountingText+`"}]}]}`...)
}

// reportedPromptTokens asks for one token and returns the prompt tokens that the engine reports.
func (b *Base) reportedPromptTokens(ctx context.Context, body []byte) (int, error) {
	var answer struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	call := &Call{Method: http.MethodPost, Path: "/v1/chat/completions", ID: "penstock-check", Headers: b.cfg.Headers, Body: body, Wait: countTimeout}
	if err := b.cfg.Client.DoJSON(ctx, call, &answer); err != nil {
		return 0, err
	}
	if answer.Usage.PromptTokens <= 0 {
		return 0, fault.New(fault.Unimplemented, "the engine does not report how many tokens a prompt has")
	}
	return answer.Usage.PromptTokens, nil
}

// countWarnings warns of media for which the engine's count differs.
func (c *mediaCounts) countWarnings() []engine.Warning {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.mu.checks, func(m engine.MediaCheck) bool { return m.Differs() })
	if i < 0 {
		return nil
	}
	m := &c.mu.checks[i]
	return []engine.Warning{{
		Code:   engine.WarnMediaCounts,
		Detail: fmt.Sprintf("the engine makes %d tokens of %s and %d are counted here: requests that show %s are routed by their text", m.Reported, m.Sample, m.Counted, strings.Join(c.mu.kinds, " and ")),
		Remedy: "name what the engine's processor is called with (mm-processor-kwargs=), or start frontends with --preprocess engine",
	}}
}

// predictionCheck compares the predicted cached tokens of requests with the engine's reports.
type predictionCheck struct {
	blockSize int

	mu struct {
		sync.Mutex
		record                            accuracy.Record
		predicted, found, compared, apart uint64
	}
}

func newPredictionCheck(blockSize int) *predictionCheck {
	return &predictionCheck{blockSize: blockSize}
}

// recordResult records the predicted and the reported cached tokens of one request.
func (l *predictionCheck) recordResult(guess, reported int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	m.compared++
	m.predicted += uint64(guess)
	m.found += uint64(reported)
	if guess-reported > l.blockSize || reported-guess > l.blockSize {
		m.apart++
	}
	known := guess / l.blockSize
	m.record.AddReport(known, known, reported/l.blockSize)
}

func (l *predictionCheck) fillStats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Predicted, s.Reported, s.Compared, s.Mismatched = l.mu.predicted, l.mu.found, l.mu.compared, l.mu.apart
}

// predictionWarnings returns the verdict. silent says that no event ever stored a block.
func (l *predictionCheck) predictionWarnings(silent bool) []engine.Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	predicted, found := l.mu.record.Evidence()
	switch verdict := l.mu.record.Rating(); {
	case verdict == accuracy.Unpredicted && silent:
		return []engine.Warning{{
			Code:   engine.WarnEventsSilent,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and no event ever told of a block", found, accuracy.Window),
			Remedy: "see whether its events are on, and whether the endpoint here is that of its settings (port + rank)",
		}}
	case verdict == accuracy.Unpredicted:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("the engine found %d blocks in its cache in its last %d requests that had any, and its events promised none of them", found, accuracy.Window),
			Remedy: "see whether the tokenizer, the template and the block size here are the engine's, and whether these events are its own",
		}}
	case verdict == accuracy.Overpredicted:
		return []engine.Warning{{
			Code:   engine.WarnMispredict,
			Detail: fmt.Sprintf("of %d blocks that the engine should have had cached in %d requests, it found %d", predicted, accuracy.Window, found),
			Remedy: "see whether events get lost, whether several engines share one endpoint for events, and whether others clear its cache",
		}}
	}
	return nil
}

// callCounters are the counters of a Base.
type callCounters struct {
	calls, scrapes, scrapeFailures atomic.Uint64
}

// Stats are an adapter's counters of its engine since it was opened.
type Stats struct {
	Calls, Scrapes, ScrapeFailures, Downs uint64
	// Predicted and Reported are cached tokens, summed over the Compared requests for which both are known;
	// in Mismatched of them they differ by more than a block.
	Predicted, Reported, Compared, Mismatched uint64
	// Of the feed of cache events: batches applied, batches repeated, gaps, gaps that could not be repaired,
	// restarts of the engine, and unreadable batches.
	Batches, Repeated, Gaps, Unrepaired, Restarts, Unreadable uint64
	// Orphans counts blocks stored with an unknown parent. Waiting of them still wait for it. Inferred are
	// the blocks assumed to be cached because of requests, not events.
	Orphans           uint64
	Waiting, Inferred int
	// Blocks is the number of blocks that the engine is known to have.
	Blocks int
	// Connected says that the event subscription is connected.
	Connected bool
}

// Stats returns the counters.
func (b *Base) Stats() Stats {
	s := Stats{Calls: b.counters.calls.Load(), Scrapes: b.counters.scrapes.Load(), ScrapeFailures: b.counters.scrapeFailures.Load()}
	b.health.mu.Lock()
	s.Downs = b.health.mu.downs
	b.health.mu.Unlock()
	b.predictions.fillStats(&s)
	b.cache.mu.Lock()
	defer b.cache.mu.Unlock()
	s.Blocks = len(b.cache.mu.held)
	b.cache.src.fillStats(&s)
	return s
}
