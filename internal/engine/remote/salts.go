package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// SaltSupport says what an adapter knows, without a proof, of how its engine treats cache salts.
type SaltSupport uint8

// The values of SaltSupport.
const (
	// SaltsUnknown admits requests with a salt after a proof has shown that the engine isolates salts.
	SaltsUnknown SaltSupport = iota
	// SaltsIgnored refuses requests with a salt: this version of the engine reuses blocks across salts.
	SaltsIgnored
	// SaltsUnneeded admits all requests: the engine reuses nothing.
	SaltsUnneeded
)

// saltState is the state of the proof for one route: an interface of the engine through which requests reach
// it.
//
//	saltsUntested   no proof has finished; requests with a salt start one and wait
//	saltsIsolated   requests with a salt are admitted
//	saltsShared     they are refused
//	saltsRejected   they are refused
//	saltsUnproven   they are refused; the proof is repeated up to maxSaltProofs times
type saltState uint8

const (
	saltsUntested saltState = iota
	saltsIsolated           // a proof found them isolated, or the engine reuses nothing
	saltsShared             // the engine reuses blocks across salts
	saltsRejected           // the engine refuses requests that have a salt
	saltsUnproven           // the engine reported no reuse of a repeated prompt, so that the proof shows nothing
)

// The routes to an engine that are not paths of passthrough requests.
const (
	routeTokens   = ""
	routeFeatures = "features" // tokens with processed media, where they have a dialect of their own
)

// The limits of proofs.
const (
	saltWait      = 5 * time.Second  // how long a request with a salt waits for a proof
	saltTimeout   = 15 * time.Second // of one request of a proof
	saltRetryMin  = time.Second      // the pause before a repeated proof, which doubles
	saltRetryMax  = time.Minute
	maxSaltProofs = 4 // inconclusive proofs per incarnation of the engine
	// provenBlocks is the least size of a proof's prompt in blocks, provenWords in words where the engine
	// makes the tokens: much more than chat templates put before each conversation.
	provenBlocks = 4
	provenWords  = 256
)

// saltGuard admits requests with cache salts to an engine. Each route is proven separately, since an engine
// may honor a salt in one of its APIs and ignore it in another.
type saltGuard struct {
	wait     time.Duration // saltWait
	retryMin time.Duration // saltRetryMin
	wake     chan struct{} // of capacity 1: a proof is due
	mu       struct {
		sync.Mutex
		ways    map[string]*saltRoute
		life    uint64        // incremented by invalidateProofs: a proof is valid for the incarnation in which it started
		changed chan struct{} // closed at the next change of a state
	}
}

// saltRoute is the state of one route.
type saltRoute struct {
	state        saltState
	fixed        bool // the adapter knows the state: no proof is needed
	wanted       bool
	failedProofs int // inconclusive ones
}

// needsProof reports whether a proof is due.
func (w *saltRoute) needsProof() bool {
	return w.wanted && !w.fixed && (w.state == saltsUntested || w.state == saltsUnproven && w.failedProofs < maxSaltProofs)
}

func newSaltGuard(cfg *Config) *saltGuard {
	g := &saltGuard{wait: cmp.Or(cfg.Spec.SaltWait, saltWait), retryMin: saltRetryMin, wake: make(chan struct{}, 1)}
	g.mu.ways, g.mu.changed = map[string]*saltRoute{}, make(chan struct{})
	enter := func(way string, known SaltSupport) {
		w := &saltRoute{fixed: known != SaltsUnknown}
		switch known {
		case SaltsIgnored:
			w.state = saltsShared
		case SaltsUnneeded:
			w.state = saltsIsolated
		}
		g.mu.ways[way] = w
	}
	if cfg.Dialect != nil {
		enter(routeTokens, cfg.Salts)
	}
	if cfg.Features != nil {
		enter(routeFeatures, cfg.Salts)
	}
	for _, path := range cfg.PassthroughPaths {
		enter(path, cfg.PassthroughSalts)
	}
	return g
}

// routeState returns the state of a route; a route that does not exist is untested.
func (g *saltGuard) routeState(way string) (saltState, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.mu.ways[way]
	if w == nil {
		return saltsUntested, g.mu.changed
	}
	return w.state, g.mu.changed
}

// refusedRoute returns a route on which requests with salts are refused: main, or else the first one in order
// of name that was proven.
func (g *saltGuard) refusedRoute(main string) (way string, state saltState, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, w := range g.mu.ways {
		switch {
		case w.state == saltsUntested || w.state == saltsIsolated || w.fixed && name != main:
		case !found || name == main || name < way && way != main:
			way, state, found = name, w.state, true
		}
	}
	return way, state, found
}

// requestProof asks for the proof of a route, unless its state is known.
func (g *saltGuard) requestProof(way string) {
	g.mu.Lock()
	w := g.mu.ways[way]
	due := w != nil && !w.fixed && !w.wanted
	if due {
		w.wanted = true
	}
	g.mu.Unlock()
	if due {
		g.wakeProver()
	}
}

func (g *saltGuard) wakeProver() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// recordProof sets the result of a proof, and reports whether the state changed. It ignores a proof that
// started before the last invalidateProofs.
func (g *saltGuard) recordProof(way string, life uint64, state saltState) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if life != g.mu.life {
		return false
	}
	w := g.mu.ways[way]
	if state == saltsUnproven {
		w.failedProofs++
	}
	news = w.state != state
	w.state = state
	g.changeLocked()
	return news
}

func (g *saltGuard) changeLocked() {
	close(g.mu.changed)
	g.mu.changed = make(chan struct{})
}

// invalidateProofs discards all proofs: the engine may have restarted, perhaps as another version.
func (g *saltGuard) invalidateProofs() {
	g.mu.Lock()
	g.mu.life++
	for _, w := range g.mu.ways { // each independently
		if !w.fixed {
			w.state, w.failedProofs = saltsUntested, 0
		}
	}
	g.changeLocked()
	g.mu.Unlock()
	g.wakeProver()
}

// dueRoutes returns the routes that need a proof, ascending, and the current incarnation of the engine.
func (g *saltGuard) dueRoutes() (ways []string, life uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for way, w := range g.mu.ways {
		if w.needsProof() {
			ways = append(ways, way)
		}
	}
	slices.Sort(ways)
	return ways, g.mu.life
}

// admitSalt returns nil if requests with salt may be sent to the engine by route. It waits for a running
// proof, at most saltWait. The error is Ineligible, about cache_salt: another worker's engine may isolate
// salts.
func (b *Base) admitSalt(ctx context.Context, way, salt string) error {
	if salt == "" {
		return nil
	}
	state, changed := b.salts.routeState(way)
	if state == saltsUntested {
		b.salts.requestProof(way)
		late := time.NewTimer(b.salts.wait)
		defer late.Stop()
		for waiting := true; waiting && state == saltsUntested; {
			select {
			case <-changed:
				state, changed = b.salts.routeState(way)
			case <-late.C:
				waiting = false
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if state == saltsIsolated {
		return nil
	}
	f := fault.New(fault.Ineligible, "the engine of %.100q cannot serve a request with cache_salt: %s", b.cfg.Card.Name, b.saltRefusal(way, state))
	f.Param = "cache_salt"
	if state == saltsUntested {
		f.RetryAfter = time.Second
	}
	return f
}

// saltRefusal returns why requests with salts are refused, and the remedy.
func (b *Base) saltRefusal(way string, state saltState) string {
	what, remedy := b.saltFinding(way, state)
	return what + "; " + remedy
}

// saltFinding returns the finding for a route, and the remedy.
func (b *Base) saltFinding(way string, state saltState) (what, remedy string) {
	by := ""
	if way != routeTokens && way != routeFeatures {
		by = " in requests of " + way
	}
	remedy = cmp.Or(b.cfg.SaltsRemedy, "take a newer version of the engine, or ask without cache_salt")
	switch state {
	case saltsShared:
		what = "it reuses for one salt what it cached for another" + by
	case saltsRejected:
		what = "it refuses the field" + by
	case saltsUnproven:
		what = "it is not known whether it keeps salts apart" + by + ", as it did not report cached tokens of a repeated prompt"
		remedy = cmp.Or(b.cfg.SaltsReportRemedy, b.cfg.NoReportRemedy, remedy)
	default:
		what, remedy = "the proof that it keeps salts apart"+by+" has not ended", "try again in a moment"
	}
	return what, remedy
}

// saltRouteOf returns the route of a request.
func (b *Base) saltRouteOf(req *engine.Request) string {
	if len(req.Features) > 0 && b.cfg.Features != nil {
		return routeFeatures
	}
	return routeTokens
}

// mainRoute returns the route that is proven first: one where the prompt of a proof is tokens, if there is
// one.
func (b *Base) mainRoute() string {
	switch {
	case b.cfg.Dialect != nil || len(b.cfg.PassthroughPaths) == 0:
		return routeTokens
	case slices.Contains(b.cfg.PassthroughPaths, pathCompletions):
		return pathCompletions
	}
	return b.cfg.PassthroughPaths[0]
}

// saltWarnings warns of an engine that serves no requests with salts on its main route, or on another one
// that was requested.
func (b *Base) saltWarnings() []engine.Warning {
	way, state, found := b.salts.refusedRoute(b.mainRoute())
	if !found {
		return nil
	}
	what, remedy := b.saltFinding(way, state)
	return []engine.Warning{{Code: engine.WarnSaltsRefused, Detail: "requests with cache_salt are refused: " + what, Remedy: remedy}}
}

// watchSalts runs due proofs until ctx ends.
func (b *Base) watchSalts(ctx context.Context) {
	if way := b.mainRoute(); b.cfg.ProveSalts {
		b.salts.requestProof(way)
		if state, _ := b.salts.routeState(way); state == saltsShared {
			b.logSaltRefusal(way, state)
		}
	}
	pause := b.salts.retryMin
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-b.salts.wake:
			pause = b.salts.retryMin
		case <-ctx.Done():
			return
		}
		again.Stop()
		ways, life := b.salts.dueRoutes()
		for _, way := range ways {
			b.proveSalts(ctx, way, life)
		}
		if ways, _ := b.salts.dueRoutes(); len(ways) > 0 {
			again.Reset(pause)
			pause = min(2*pause, saltRetryMax)
		}
	}
}

// proveSalts proves one route for an incarnation of the engine, and records the result; if the engine did not
// answer, the state stays.
func (b *Base) proveSalts(ctx context.Context, way string, life uint64) {
	if b.health.downError() != nil {
		return
	}
	log := b.log.With("way", cmp.Or(way, "tokens"))
	state, err := b.runSaltProof(ctx, way)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Info("the proof that the engine keeps cache salts apart did not end, and is repeated", "error", err)
	case !b.salts.recordProof(way, life, state):
	case state == saltsIsolated:
		log.Info("the engine keeps cache salts apart")
	default:
		b.logSaltRefusal(way, state)
	}
}

// logSaltRefusal logs that requests with salts are refused on a route.
func (b *Base) logSaltRefusal(way string, state saltState) {
	what, remedy := b.saltFinding(way, state)
	b.log.Warn("requests with a cache salt are refused", "way", cmp.Or(way, "tokens"), "reason", what, "remedy", remedy)
}

// saltProof holds the cached tokens reported by the responses of a proof; engine.CachedUnknown if not
// reported.
type saltProof struct {
	first, repeated int // of one prompt with one salt
	other, unsalted int // the same prompt with another salt, and without one
	last            int // the same prompt with the first salt once more
}

// verdict returns the resulting state. Half of the prompt is far more than can be equal by chance or through
// a chat template.
func (a *saltProof) verdict() saltState {
	half := (a.repeated + 1) / 2
	switch {
	case a.repeated <= 0 || a.first >= half:
		return saltsUnproven
	case a.other >= half || a.unsalted >= half:
		return saltsShared
	case a.last < half: // the cached blocks are gone, so that the other requests could not find them
		return saltsUnproven
	}
	return saltsIsolated
}

// runSaltProof asks the engine for a token after a random prompt, with random salts.
func (b *Base) runSaltProof(ctx context.Context, way string) (saltState, error) {
	ask, err := b.saltProbe(way)
	if err != nil {
		return saltsUntested, err
	}
	one, other := "penstock-"+rand.Text(), "penstock-"+rand.Text()
	var a saltProof
	questions := []struct {
		salt   string
		cached *int
	}{{one, &a.first}, {one, &a.repeated}, {other, &a.other}, {"", &a.unsalted}, {one, &a.last}}
	if way == routeTokens && b.cache.knowsSlots() {
		questions = questions[:4] // the prompt without a salt may have been computed in the slot of the first one
	}
	for _, q := range questions {
		*q.cached, err = b.probeSalt(ctx, way, q.salt, ask)
		switch code := fault.CodeOf(err); {
		case err == nil:
		case ctx.Err() == nil && (code == fault.Invalid || code == fault.Unimplemented || code == fault.TooLarge):
			return saltsRejected, nil
		default:
			return saltsUntested, err
		}
		if q.cached == &a.repeated && a.repeated <= 0 {
			return saltsUnproven, nil
		}
	}
	if len(questions) == 4 {
		a.last = a.repeated
	}
	return a.verdict(), nil
}

// probeSalt makes one request of a proof, which is not counted as load.
func (b *Base) probeSalt(ctx context.Context, way, salt string, ask func(context.Context, string) (int, error)) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, saltTimeout)
	defer cancel()
	defer b.load.startProbe(way == routeTokens && b.cache.knowsSlots())()
	return ask(ctx, salt)
}

// saltProbe returns a function that asks for one token by a route, after the same prompt each time and with a
// salt, and that returns how many tokens of the prompt the engine had cached.
func (b *Base) saltProbe(way string) (func(ctx context.Context, salt string) (cached int, err error), error) {
	d := b.cfg.Dialect
	switch way {
	case routeTokens:
	case routeFeatures:
		d = b.cfg.Features
	case pathCompletions:
		prompt := b.randomPrompt()
		b.cache.noteProbe(prompt)
		list := strictjson.AppendTokens(nil, prompt)
		return func(ctx context.Context, salt string) (int, error) { return b.probePassthrough(ctx, way, list, salt) }, nil
	default:
		b.cache.noteSaltedCall()
		text := quoteJSON(b.randomText())
		return func(ctx context.Context, salt string) (int, error) { return b.probePassthrough(ctx, way, text, salt) }, nil
	}
	by, prompt := b, b.randomPrompt()
	b.cache.noteProbe(prompt)
	if !b.cache.knowsSlots() {
		// With slots the cache tracker takes part in the isolation of salts, and is tested with the engine.
		// Without slots the proof must not touch the tracker.
		var err error
		by, err = New(Config{Card: b.cfg.Card, Client: b.cfg.Client, Dialect: d, Choices: LeaderFirst, Continuations: b.cfg.Continuations, CachedReporting: b.cfg.CachedReporting})
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, salt string) (int, error) { return by.probeTokens(ctx, prompt, salt) }, nil
}

// randomPrompt returns tokens that share no prefix with other prompts.
func (b *Base) randomPrompt() []kv.Token {
	card := &b.cfg.Card
	prompt := make([]kv.Token, min(provenBlocks*card.BlockSize+1, max(card.ContextLength-2, 1)))
	least, most := 1, min(card.VocabSize, commonTokens)
	if most == commonTokens {
		least = commonTokens / 10 // lower ids are special tokens of some models
	}
	draw := randomSource()
	for i := range prompt {
		prompt[i] = kv.Token(least + draw.Below(max(most-least, 1)))
	}
	return prompt
}

// commonTokens bounds the ids in random prompts.
const commonTokens = 1000

// randomText returns words that share no prefix with other texts.
func (b *Base) randomText() string {
	card := &b.cfg.Card
	words := min(max(provenBlocks*card.BlockSize, provenWords), max(card.ContextLength/4, 1))
	draw := randomSource()
	text := make([]byte, 0, 2*words)
	for range words {
		text = append(text, byte('a'+draw.Below(26)), ' ')
	}
	return string(text[:len(text)-1])
}

func randomSource() splitmix.Source {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	return splitmix.Source(binary.LittleEndian.Uint64(seed[:]))
}

// probeTokens asks for one token after a prompt.
func (b *Base) probeTokens(ctx context.Context, prompt []kv.Token, salt string) (cached int, err error) {
	req := &engine.Request{
		ID: "penstock-salts", Attempt: 1, Choices: 1, Logprobs: -1, Model: b.cfg.Card.Name, Prompt: prompt,
		Salt: kv.Salt{Namespace: salt}, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true},
	}
	cached = engine.CachedUnknown
	a := newAttempt(b, req, func(d *engine.Delta) error {
		if !d.Accepted {
			cached = max(cached, d.Cached)
		}
		return nil
	})
	a.probe = true
	return cached, b.runAttempt(ctx, a)
}

// probePassthrough asks for one token in a request of a client's form.
func (b *Base) probePassthrough(ctx context.Context, path string, prompt []byte, salt string) (cached int, err error) {
	body, err := saltBody(path, b.upstreamModel(""), prompt, salt)
	if err != nil {
		return engine.CachedUnknown, err
	}
	answer, err := b.cfg.Client.ReadBody(ctx, &Call{Path: path, Body: body, Headers: b.cfg.Headers, Wait: saltTimeout}, MaxEvent)
	if err != nil {
		return engine.CachedUnknown, err
	}
	said, err := parseUsage(answer)
	if err != nil {
		return engine.CachedUnknown, err
	}
	return said.cached, nil
}

// saltBody returns the body of a request for one token after a prompt, which is JSON: tokens for completions,
// else a text.
func saltBody(path, model string, prompt []byte, salt string) ([]byte, error) {
	body := fmt.Appendf(nil, `{"model":%s,"stream":false`, quoteJSON(model))
	switch path {
	case pathCompletions:
		body = fmt.Appendf(body, `,"max_tokens":1,"prompt":%s`, prompt)
	case pathChat, "/v1/messages":
		body = fmt.Appendf(body, `,"max_tokens":1,"messages":[{"role":"user","content":%s}]`, prompt)
	case "/v1/responses":
		body = fmt.Appendf(body, `,"max_output_tokens":16,"store":false,"input":[{"role":"user","content":%s}]`, prompt)
	default:
		return nil, fault.New(fault.Unimplemented, "no proof is known for requests of %.100q", path)
	}
	if salt != "" {
		body = fmt.Appendf(body, `,"cache_salt":%s`, quoteJSON(salt))
	}
	return append(body, '}'), nil
}

func quoteJSON(text string) []byte { return strictjson.AppendString(nil, text) }
