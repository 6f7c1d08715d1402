package tiny

import (
	"context"
	"slices"
	"strings"

	"penstock/core/encode"
	"penstock/core/fault"
	"penstock/core/media"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/tiny/model"
)

var _ batch.DiscardingComputer = (*computer)(nil)

// shownMedia are the media objects of a request, which its choices share. The loop owns it, after the goroutine which made
// it.
type shownMedia struct {
	of      *computer
	ctx     context.Context // the caller's, for its trace
	req     *engine.Request
	objects []shownObject
	users   []*mediaUser // sequences which wait for rows, or have them and are not computed yet

	// request encodes or has the rows of encoded, indexes of objects, ascending; nil if none does.
	request *encodeRequest
	encoded []int
	// replaced are requests whose rows a user reads; none if no user reads any.
	replaced []*encodeRequest
	// placed has the objects at their positions, up to the first whose grid is unknown, with the rows which are staged.
	placed *model.PlacedMedia
}

// shownObject is an object in a prompt.
type shownObject struct {
	start, pads int
	grid        [3]int
	known       bool // the grid is
	sized       bool // the grid was known when the request came
}

// endIn returns the end of the tokens which cannot be computed without the object, of a choice which starts with a
// number of tokens: all of them if the object came without a size, since only its grid says where the ones after it are.
// It does not change when the object is encoded: the scheduler has it from the beginning.
func (o *shownObject) endIn(tokens int) int {
	if o.sized {
		return o.start + o.pads
	}
	return tokens
}

// mediaUser is a sequence which needs objects: all which end after its first ready tokens. Its choice starts with a number
// of tokens.
type mediaUser struct {
	id     paged.SeqID
	tokens int
	ready  int
	waits  bool // it is told when the rows of shownMedia.request are there
	// reads says that it was told of rows which it needs, and may read them at any time: those of shownMedia.request or,
	// if that one is not ready, the replaced ones.
	reads bool
}

// prepareMedia returns the media objects of a request, nil if there are none. Its errors name the part of the request
// that is wrong.
func (c *computer) prepareMedia(ctx context.Context, req *engine.Request) (*shownMedia, error) {
	switch {
	case len(req.Objects) == 0 && (len(req.Media) == 0 || c.encoders == nil):
		return nil, nil
	case c.encoders == nil:
		return nil, objectError(&req.Objects[0], "the model takes text alone; leave it out, or ask another model")
	case len(req.Objects) != len(req.Media):
		return nil, fault.InvalidParam("media", "%d media objects for the %d places that the prompt has for them", len(req.Objects), len(req.Media))
	}
	sh := &shownMedia{of: c, ctx: ctx, req: req}
	var all []model.Object
	for i := range req.Objects {
		o := shownObject{}
		var err error
		if o.start, o.pads, err = c.encoders.padRun(&req.Objects[i], req.Prompt, req.Media[i]); err != nil {
			return nil, err
		}
		if o.grid, o.sized = c.encoders.gridOf(&req.Objects[i], o.pads); !o.sized {
			o.grid = [3]int{}
		}
		o.known = o.sized
		sh.objects = append(sh.objects, o)
		all = append(all, model.Object{Start: o.start, Count: o.pads, Grid: o.grid})
	}
	if _, err := c.encoders.model.PlaceMedia(all); err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Param: "media", Message: "the media objects of the prompt overlap, or are not in its order", Err: err}
	}
	return sh, sh.placeObjects(nil, nil)
}

// placeObjects sets the positions of the objects, with the rows and the grids of the encoded ones.
func (sh *shownMedia) placeObjects(rows [][]float32, grids [][3]int) (err error) {
	var all []model.Object
	for i := range sh.objects {
		o := &sh.objects[i]
		placed := model.Object{Start: o.start, Count: o.pads}
		if k, ok := slices.BinarySearch(sh.encoded, i); ok && rows != nil {
			placed.Rows, o.grid, o.known = rows[k], grids[k], true
		}
		if !o.known {
			break
		}
		placed.Grid = o.grid
		all = append(all, placed)
	}
	sh.placed, err = sh.of.encoders.model.PlaceMedia(all)
	return err
}

// appendNeeded appends the objects which a sequence needs.
func (sh *shownMedia) appendNeeded(dst []int, u *mediaUser) []int {
	for i := range sh.objects {
		if sh.objects[i].endIn(u.tokens) > u.ready {
			dst = append(dst, i)
		}
	}
	return dst
}

// UnfinishedRanges implements [batch.MediaComputer].
func (c *computer) UnfinishedRanges(s batch.State) (all []paged.TokenRange) {
	choice := s.(*choiceState)
	if choice.shown == nil {
		return nil
	}
	for i := range choice.shown.objects {
		o := &choice.shown.objects[i]
		all = append(all, paged.TokenRange{Start: o.start, End: o.endIn(choice.tokens)})
	}
	return all
}

// StartEncoding implements [batch.MediaComputer].
func (c *computer) StartEncoding(id paged.SeqID, s batch.State, ready int) {
	choice := s.(*choiceState)
	sh := choice.shown
	u := sh.findUser(id)
	if u == nil {
		u = &mediaUser{id: id, tokens: choice.tokens}
		sh.users = append(sh.users, u)
		c.shown[id] = sh
	}
	before := sh.appendNeeded(nil, u)
	u.ready, u.waits = ready, true
	needed := sh.appendNeeded(nil, u)
	u.reads = u.reads && containsAll(before, needed) // else it reads none before it has all
	sh.dropUnread()
	if len(needed) == 0 {
		sh.removeUser(u)
		return
	}
	state, err := requestEnded, error(nil)
	if sh.request != nil {
		state, err = sh.request.pollRequest()
	}
	switch covers := containsAll(sh.encoded, needed); {
	case err != nil, covers && state == requestReady: // of a request which has failed, this sequence fails too
		c.noteChange(sh)
	case covers && state == requestPrefilled:
		sh.request.stageAgain()
	case covers && state == requestEncoding && (len(sh.users) > 1 || !sh.encodesOther(needed)):
	default:
		sh.encodeNeeded()
	}
}

// RestartEncoding implements [batch.DiscardingComputer]. With it no sequence waits for ever, although some hold memory of
// rows, staged rows or rows of their requests, while they wait for KV blocks, and others the reverse. Each holder
// of rows gives them back, whatever the others do:
//
//   - A sequence which has its blocks and reads rows waits for nothing: it has blocks for all its tokens, and the rows
//     which it needs were staged at once. It computes its prompt and gives the rows back, kept ones with its end, or it
//     is preempted and waits.
//   - A sequence which waits, was told of its rows, and finds the other objects in the KV cache, is not encoding. The
//     scheduler takes the blocks of encoding sequences for it. Other holders of blocks are not encoding either, and the
//     oldest of them advances in every step. So it gets its blocks.
//   - A sequence which waits, and whose cached objects were evicted, is encoding: it is passed over, perhaps until one
//     with blocks has got memory. The scheduler reports it, and RestartEncoding gives its staged rows back before it asks
//     for more of them, behind all others. It keeps other rows only if it waits for no memory of them. It needs more
//     objects each time, so that happens at most once for each of them until it is preempted.
//   - Replaced rows are held only while a sequence reads them. That is one of those above, and it does not wait for the
//     request which replaces them.
//
// Memory is granted in the order of requests, so each of them gets it, and its sequences are not encoding then. Of those
// which have blocks the oldest is never preempted, so it finishes.
func (c *computer) RestartEncoding(id paged.SeqID, s batch.State, ready int) {
	if u := s.(*choiceState).shown.findUser(id); u != nil {
		u.reads = false
	}
	c.StartEncoding(id, s, ready)
}

// encodesOther reports whether an object is being encoded which is not among the needed ones.
func (sh *shownMedia) encodesOther(needed []int) bool {
	for k, i := range sh.encoded {
		if _, ok := slices.BinarySearch(needed, i); !ok && sh.request.encodesObject(k) {
			return true
		}
	}
	return false
}

// containsAll reports whether one ascending list has all of another.
func containsAll(list, of []int) bool {
	return !slices.ContainsFunc(of, func(i int) bool {
		_, ok := slices.BinarySearch(list, i)
		return !ok
	})
}

// encodeNeeded has encoded what all users need, instead of what was encoded before. What is needed of that goes on, see
// ReplaceRequest of package encode. Rows which are staged stay for users which read them, until none does. Without any
// they are given up: the same request must not wait for memory behind itself.
func (sh *shownMedia) encodeNeeded() {
	c, old := sh.of, sh.request
	switch {
	case !sh.hasReader():
		sh.dropRows()
	case old != nil:
		sh.replaced = append(sh.replaced, old)
		old.holdStaged()
	}
	sh.encoded = sh.encoded[:0:0]
	for _, u := range sh.users {
		sh.encoded = sh.appendNeeded(sh.encoded, u)
		u.waits = true
	}
	slices.Sort(sh.encoded)
	sh.encoded = slices.Compact(sh.encoded)
	var objects []*encodeObject
	for _, i := range sh.encoded {
		o := &sh.req.Objects[i]
		e := &encodeObject{
			rowRequest: rowRequest{object: o, id: sh.req.ID, namespace: sh.req.Salt.Namespace, pads: sh.objects[i].pads},
			index:      i, from: &c.content, position: sh.objects[i].start, tokens: sh.objects[i].pads, grid: sh.objects[i].grid,
		}
		e.key = c.encoders.rows.keyOf(o, e.namespace)
		if old != nil {
			if k := old.findObject(i); k >= 0 { // as it was: a look-up which was counted, and perhaps another size than is known by now
				e.counted, e.grid = true, old.objects[k].grid
			}
		}
		objects = append(objects, e)
	}
	q := c.encoders.pool.newRequest(sh.ctx, objects, func() { c.noteChange(sh) })
	q.usage = encode.Usage{Branches: sh.req.Choices, MultiTurn: isConversation(sh.req), PrefixCaching: c.reuse == paged.On}
	sh.request, q.replaces = q, old
	if err := c.encoders.pool.submitRequest(q); err != nil {
		if old != nil {
			old.endRequest()
		}
		q.err = refusedSize(objects, err)
		c.noteChange(sh)
	}
}

// isConversation reports whether a request is a turn of a conversation, whose next turn shows the same media: their
// parts are in messages.
func isConversation(req *engine.Request) bool {
	return slices.ContainsFunc(req.Objects, func(o media.Object) bool {
		return strings.HasPrefix(o.Part, "messages[") || strings.HasPrefix(o.Part, "input[")
	})
}

// noteChange makes the loop look at media. It is called from any goroutine.
func (c *computer) noteChange(sh *shownMedia) {
	c.changes.Lock()
	c.changes.of = append(c.changes.of, sh)
	c.changes.Unlock()
	c.wake()
}

// AppendEncoded implements [batch.MediaComputer].
func (c *computer) AppendEncoded(dst []paged.RangeID) []paged.RangeID {
	c.changes.Lock()
	changed := c.changes.of
	c.changes.of = nil
	c.changes.Unlock()
	for _, sh := range changed {
		dst = sh.takeChange(dst)
	}
	return dst
}

// takeChange looks at the request of media.
func (sh *shownMedia) takeChange(dst []paged.RangeID) []paged.RangeID {
	if len(sh.users) == 0 { // the request may have ended
		return dst
	}
	switch state, err := sh.request.pollRequest(); {
	case err != nil:
		sh.failUsers(err)
		return dst
	case state != requestReady:
		return dst
	}
	if err := sh.placeObjects(sh.request.stagedRows()); err != nil {
		sh.failUsers(fault.New(fault.Internal, "the rows of the media objects do not fit into the prompt; report this: %w", err))
		return dst
	}
	sh.dropReplaced()
	for _, u := range sh.users {
		if !u.waits {
			continue
		}
		u.waits, u.reads = false, true
		for _, i := range sh.appendNeeded(nil, u) {
			dst = append(dst, paged.RangeID{Seq: u.id, Index: i})
		}
	}
	return dst
}

// failUsers fails the sequences of a request whose media cannot be encoded.
func (sh *shownMedia) failUsers(err error) {
	for _, u := range sh.users {
		sh.of.failed = append(sh.of.failed, batch.FailedSequence{ID: u.id, Err: err})
	}
}

// AppendFailed implements [batch.DiscardingComputer].
func (c *computer) AppendFailed(dst []batch.FailedSequence) []batch.FailedSequence {
	dst = append(dst, c.failed...)
	clear(c.failed)
	c.failed = c.failed[:0]
	return dst
}

// StopEncoding implements [batch.MediaComputer].
func (c *computer) StopEncoding(id paged.SeqID) {
	if sh := c.shown[id]; sh != nil {
		sh.removeUser(sh.findUser(id))
	}
}

func (sh *shownMedia) findUser(id paged.SeqID) *mediaUser {
	for _, u := range sh.users {
		if u.id == id {
			return u
		}
	}
	return nil
}

// finishTokens says that the first tokens of a sequence are in the KV cache.
func (sh *shownMedia) finishTokens(id paged.SeqID, n int) {
	u := sh.findUser(id)
	if u == nil || !u.reads {
		return
	}
	for i := range sh.objects {
		if o := &sh.objects[i]; o.start+o.pads > n { // the grids of all which it needed are known by now
			return
		}
	}
	sh.forgetUser(u)
	if len(sh.users) > 0 {
		return
	}
	if !sh.request.finishPrefill() {
		sh.request.endRequest() // if it has replaced the one whose rows were read
		sh.request = nil
	}
	sh.dropRows()
}

// dropRows makes the placed objects let go of rows.
func (sh *shownMedia) dropRows() {
	sh.dropReplaced()
	_ = sh.placeObjects(nil, nil) // as before
}

// dropUnread gives up replaced rows which no sequence reads any more.
func (sh *shownMedia) dropUnread() {
	if len(sh.replaced) > 0 && !sh.hasReader() {
		sh.dropRows()
	}
}

// hasReader reports whether a sequence may read rows.
func (sh *shownMedia) hasReader() bool {
	return slices.ContainsFunc(sh.users, func(u *mediaUser) bool { return u.reads })
}

func (sh *shownMedia) dropReplaced() {
	for _, q := range sh.replaced {
		q.dropStaged()
	}
	sh.replaced = nil
}

func (sh *shownMedia) forgetUser(u *mediaUser) {
	sh.users = slices.DeleteFunc(sh.users, func(o *mediaUser) bool { return o == u })
	delete(sh.of.shown, u.id)
	sh.dropUnread()
}

// removeUser removes a sequence which needs no rows any more. What no sequence needs is given up, unless it is kept for other
// choices.
func (sh *shownMedia) removeUser(u *mediaUser) {
	if sh.forgetUser(u); len(sh.users) > 0 || sh.request == nil {
		return
	}
	if state, _ := sh.request.pollRequest(); state != requestPrefilled {
		sh.request.endRequest()
		sh.request = nil
		sh.dropRows()
	}
}

// release gives everything up, when the loop has nothing of the request any more.
func (sh *shownMedia) release() {
	if sh == nil || sh.request == nil {
		return
	}
	sh.request.endRequest()
	sh.request = nil
	sh.dropReplaced()
}
