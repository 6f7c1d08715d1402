package replay

import (
	"strconv"
	"time"

	"penstock/core/splitmix"
)

// conversation is one which has requests left.
type conversation struct {
	number  int
	name    string
	at      time.Duration // of the next request, the earliest
	pause   time.Duration // before it
	left    int           // requests
	group   int
	said    int // tokens after the prefix which the next request sends
	content uint64
	draw    random
}

// makeTurn makes the next request of any conversation: of an open one or a new one, whichever is earlier.
func (s *making) converse(r *Request) {
	if !s.drawn {
		s.coming, s.drawn = s.clock.next(), true
	}
	if len(s.open) == 0 || s.coming < s.open[0].at {
		s.open.push(s.beginning())
	}
	c := &s.open[0]
	s.speak(r, c)
	if s.goesOn(c, r) {
		s.open.fix()
	} else {
		s.open.pop()
	}
}

// startConversation returns the conversation which starts next.
func (s *making) beginning() conversation {
	g := s.g
	c := conversation{
		number: s.begun, name: "c" + strconv.Itoa(s.begun), at: s.coming,
		group: s.group.draw(&s.shape), content: s.name(ofConversation, s.begun),
	}
	c.draw = random{splitmix.Source(splitmix.Mix(c.content))}
	c.left = 1 + c.draw.Below(2*g.turns-1) // turns on average
	c.said = min(length(&c.draw, g.first, g.vary), max(g.context-g.prefix, 1))
	s.begun++
	s.drawn = false
	return c
}

// fillTurn makes r the next request of c: all previous prompts and responses are in its prompt.
func (s *making) speak(r *Request, c *conversation) {
	r.Session, r.At, r.Delay = c.name, c.at, c.pause
	r.Output = length(&c.draw, s.g.output, s.g.vary)
	if s.g.prefix > 0 {
		s.begin(r, c.group)
	}
	s.put(r, c.content, c.said)
}

// scheduleNextTurn moves c to the request after r, if there is one.
func (s *making) goesOn(c *conversation, r *Request) bool {
	g := s.g
	c.left--
	more := r.Output + length(&c.draw, g.input, g.vary)
	if c.left == 0 || r.Input+more > g.context {
		return false
	}
	c.said += more
	c.pause = g.think
	if g.vary > 0 {
		c.pause = duration(float64(g.think) * c.draw.gamma(1/float64(g.vary*g.vary)))
	}
	c.at = min(c.at+c.pause, maxAt)
	return true
}

// conversationHeap is a min-heap by time, then by number.
type conversations []conversation

func (h conversations) less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}

func (h *conversations) push(c conversation) {
	*h = append(*h, c)
	for i := len(*h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		(*h)[i], (*h)[up] = (*h)[up], (*h)[i]
		i = up
	}
}

// siftDown restores the heap after the time of the first one has grown.
func (h conversations) fix() {
	for i := 0; ; {
		least := i
		for _, down := range [...]int{2*i + 1, 2*i + 2} {
			if down < len(h) && h.less(down, least) {
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
func (h *conversations) pop() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	(*h)[last] = conversation{}
	*h = (*h)[:last]
	h.fix()
}
