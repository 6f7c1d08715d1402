package grammar

// State is a position in a text: the set of all readings of the schema which match the bytes so far. It is
// not safe for concurrent use.
type State struct {
	g       *Grammar
	threads []thread
	frames  []frame
	spare   []thread

	// The current step: the start of its frames, and the instructions which it reached, marked with the
	// number of the step.
	base    int
	step    uint32
	reached []uint32
	rules   []ruleVisit
	work    int     // visited threads, frames and rules; callers may bound it
	sweepAt int     // number of frames at which unused ones are dropped
	moved   []int32 // scratch of sweepFrames
}

// ruleVisit is a rule which was entered in this step.
type ruleVisit struct{ pc, frame int32 }

// NewState returns the state of an empty text.
func (g *Grammar) NewState() *State {
	s := &State{g: g, reached: make([]uint32, len(g.code))}
	s.Reset()
	return s
}

// Reset returns to the empty text.
func (s *State) Reset() {
	s.frames = append(s.frames[:0], frame{parent: -1})
	s.sweepAt = 64
	s.beginStep()
	s.threads = s.followThread(s.threads[:0], thread{pc: s.g.start})
}

// Next processes the next byte of the text. If the byte is not allowed it returns false and changes
// nothing.
func (s *State) Next(b byte) bool {
	mark := len(s.frames)
	s.spare = s.advanceThreads(s.spare[:0], s.threads, b)
	if len(s.spare) == 0 {
		s.frames = s.frames[:mark]
		return false
	}
	s.threads, s.spare = s.spare, s.threads
	if len(s.frames) >= s.sweepAt {
		s.sweepFrames()
	}
	return true
}

// Write processes the bytes of text. At the first byte which is not allowed it returns false, and the state
// is that before this byte.
func (s *State) Write(text []byte) bool {
	for _, b := range text {
		if !s.Next(b) {
			return false
		}
	}
	return true
}

// IsComplete reports whether the text so far matches the schema.
func (s *State) IsComplete() bool {
	for i := range s.threads {
		if s.g.code[s.threads[i].pc].op == opEnd {
			return true
		}
	}
	return false
}

// IsEnded reports whether the text is complete and no byte may follow.
func (s *State) IsEnded() bool {
	if !s.IsComplete() {
		return false
	}
	mark := len(s.frames)
	for b := range 256 {
		if s.spare = s.advanceThreads(s.spare[:0], s.threads, byte(b)); len(s.spare) > 0 {
			s.frames = s.frames[:mark]
			return false
		}
	}
	return true
}

// beginStep starts a step.
func (s *State) beginStep() {
	s.base = len(s.frames)
	s.rules = s.rules[:0]
	if s.step++; s.step == 0 { // after 2^32 steps
		clear(s.reached)
		s.step = 1
	}
}

// advanceThreads appends to dst the threads of src after byte b.
func (s *State) advanceThreads(dst, src []thread, b byte) []thread {
	s.beginStep()
	s.work += len(src)
	for i := range src {
		t := src[i]
		in := &s.g.code[t.pc]
		switch in.op {
		case opLiteral:
			at := in.x + int32(t.a)
			switch {
			case s.g.bytes[at] != b:
			case at+1 == in.y:
				dst = s.followThread(dst, thread{pc: in.next, frame: t.frame})
			default:
				t.a++
				dst = s.addThread(dst, t)
			}
		case opText:
			switch s.g.strings[in.x].acceptByte(&t, b) {
			case byteEnded:
				dst = s.followThread(dst, thread{pc: in.next, frame: t.frame})
			case byteAccepted:
				dst = s.addThread(dst, t)
			}
		case opNumber:
			n := &s.g.numbers[in.x]
			if !n.acceptByte(&t, b) {
				continue
			}
			dst = s.addThread(dst, t)
			if n.isComplete(&t) {
				dst = s.followThread(dst, thread{pc: in.next, frame: t.frame})
			}
		}
	}
	return dst
}

// followThread appends to dst every instruction at which t waits for a byte or ends.
func (s *State) followThread(dst []thread, t thread) []thread {
	for {
		// At maxThreads nothing is added any more, so more readings would be useless. This bounds the work
		// of a step.
		if len(dst) == maxThreads {
			return dst
		}
		in := &s.g.code[t.pc]
		switch in.op {
		case opSplit:
			targets := s.g.targets[in.x:in.y]
			for _, pc := range targets[:len(targets)-1] {
				dst = s.followThread(dst, thread{pc: pc, frame: t.frame})
			}
			t.pc = targets[len(targets)-1]
		case opRoom:
			if int(s.frames[t.frame].depth+in.x) > MaxDepth || s.hasEntered(t) {
				return dst
			}
			t.pc = in.next
		case opCall:
			t.frame = s.pushFrame(frame{parent: t.frame, ret: in.next, depth: s.frames[t.frame].depth + 1})
			t.pc = in.x
		case opReturn:
			f := &s.frames[t.frame]
			t.pc, t.frame = f.ret, f.parent
		case opCount:
			if f := s.frames[t.frame]; f.count < in.x {
				f.count++
				t.frame = s.pushFrame(f)
			}
			t.pc = in.next
		case opMore:
			if s.frames[t.frame].count >= in.x {
				return dst
			}
			t.pc = in.next
		case opEnough:
			if s.frames[t.frame].count < in.x {
				return dst
			}
			t.pc = in.next
		default:
			return s.addThread(dst, t)
		}
	}
}

// hasEntered reports whether this step entered the same rule with the same frame before: everything which
// follows is known. Without it, alternatives which lead to the same rules would be followed once per path.
func (s *State) hasEntered(t thread) bool {
	if s.reached[t.pc] == s.step {
		s.work += len(s.rules) / 64 // comparisons are cheap
		for _, v := range s.rules {
			if v.pc == t.pc && v.frame == t.frame {
				return true
			}
		}
	}
	s.work++
	s.reached[t.pc] = s.step
	s.rules = append(s.rules, ruleVisit{t.pc, t.frame})
	return false
}

// pushFrame returns the frame of this step which equals f, or creates it.
func (s *State) pushFrame(f frame) int32 {
	s.work += 1 + (len(s.frames)-s.base)/8
	for i := s.base; i < len(s.frames); i++ {
		if s.frames[i] == f {
			return int32(i)
		}
	}
	s.frames = append(s.frames, f)
	return int32(len(s.frames) - 1)
}

// addThread appends t to dst unless it is present.
func (s *State) addThread(dst []thread, t thread) []thread {
	if s.reached[t.pc] == s.step {
		s.work += len(dst) / 64
		for i := range dst {
			if dst[i] == t {
				return dst
			}
		}
	}
	s.reached[t.pc] = s.step
	if len(dst) == maxThreads {
		return dst
	}
	return append(dst, t)
}

// sweepFrames drops the frames to which no thread returns. Parents come before their children, so one pass
// down finds the used ones and one pass up moves them.
func (s *State) sweepFrames() {
	s.moved = append(s.moved[:0], make([]int32, len(s.frames))...)
	for i := range s.threads {
		s.moved[s.threads[i].frame] = 1
	}
	for i := len(s.frames) - 1; i > 0; i-- {
		if p := s.frames[i].parent; s.moved[i] != 0 && p >= 0 {
			s.moved[p] = 1
		}
	}
	n := int32(0)
	for i, f := range s.frames {
		if s.moved[i] == 0 {
			continue
		}
		if f.parent >= 0 {
			f.parent = s.moved[f.parent]
		}
		s.frames[n] = f
		s.moved[i] = n
		n++
	}
	s.frames = s.frames[:n]
	for i := range s.threads {
		s.threads[i].frame = s.moved[s.threads[i].frame]
	}
	s.sweepAt = 2*int(n) + 64
}
