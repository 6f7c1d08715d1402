package replay

import (
	"strconv"
	"time"

	"penstock/core/splitmix"
)

// conversation is one which has requests left.
type conversation struct {
	number       int
	name         string
	at           time.Duration // of the next request, the earliest
	pause        time.Duration // before it
	turnsLeft    int           // requests
	turn         int           // number of the next request, from 0
	group        int
	promptTokens int // tokens after the prefix which the next request sends
	content      uint64
	random       randomSource
}

// makeTurn makes the next request of any conversation: of an open one or a new one, whichever is earlier.
func (s *generatorSource) makeTurn(r *Request) {
	if !s.nextStartDrawn {
		s.nextStart, s.nextStartDrawn = s.clock.nextTime(), true
	}
	if len(s.conversations) == 0 || s.nextStart < s.conversations[0].at {
		s.conversations.push(s.startConversation())
	}
	c := &s.conversations[0]
	s.fillTurn(r, c)
	if s.scheduleNextTurn(c, r) {
		s.conversations.siftDown()
	} else {
		s.conversations.pop()
	}
}

// startConversation returns the conversation which starts next.
func (s *generatorSource) startConversation() conversation {
	g := s.gen
	c := conversation{
		number: s.started, name: "c" + strconv.Itoa(s.started), at: s.nextStart,
		group: s.group.drawRank(&s.shape), content: s.contentID(conversationContent, s.started),
	}
	c.random = randomSource{splitmix.Source(splitmix.Mix(c.content))}
	c.turnsLeft = 1 + c.random.Below(2*g.turns-1) // turns on average
	c.promptTokens = min(drawLength(&c.random, g.first, g.variation), max(g.context-g.prefix, 1))
	s.started++
	s.nextStartDrawn = false
	return c
}

// fillTurn makes r the next request of c: all previous prompts and responses are in its prompt.
func (s *generatorSource) fillTurn(r *Request, c *conversation) {
	r.Session, r.At, r.Delay = c.name, c.at, c.pause
	r.Output = drawLength(&c.random, s.gen.output, s.gen.variation)
	if s.gen.prefix > 0 {
		s.appendPrefix(r, c.group)
	}
	if s.gen.window > 0 {
		for i := range s.gen.window {
			s.appendImage(r, splitmix.Mix(c.content^splitmix.Mix(imageContent<<56|uint64(c.turn+i))))
		}
		s.appendContent(r, s.contentID(questionContent, r.Index), drawLength(&c.random, s.gen.input, s.gen.variation))
		return
	}
	s.appendContent(r, c.content, c.promptTokens)
}

// scheduleNextTurn moves c to the request after r, if there is one.
func (s *generatorSource) scheduleNextTurn(c *conversation, r *Request) bool {
	g := s.gen
	c.turnsLeft--
	c.turn++
	more := r.Output + drawLength(&c.random, g.input, g.variation)
	if c.turnsLeft == 0 || g.window == 0 && r.Input+more > g.context {
		return false
	}
	c.promptTokens += more
	c.pause = g.think
	if g.variation > 0 {
		c.pause = clampDuration(float64(g.think) * c.random.drawGamma(1/float64(g.variation*g.variation)))
	}
	c.at = min(c.at+c.pause, maxRequestTime)
	return true
}

// conversationHeap is a min-heap by time, then by number.
type conversationHeap []conversation

func (h conversationHeap) isBefore(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}

func (h *conversationHeap) push(c conversation) {
	*h = append(*h, c)
	for i := len(*h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.isBefore(i, up) {
			return
		}
		(*h)[i], (*h)[up] = (*h)[up], (*h)[i]
		i = up
	}
}

// siftDown restores the heap after the time of the first one has grown.
func (h conversationHeap) siftDown() {
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < len(h) && h.isBefore(down, least) {
				least = down
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// pop removes the first one.
func (h *conversationHeap) pop() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	(*h)[last] = conversation{}
	*h = (*h)[:last]
	h.siftDown()
}
