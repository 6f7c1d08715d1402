package pool

import (
	"penstock/core/fault"
	"penstock/core/kv"
)

// Offsets of the words of an owner.
const (
	wordLife      = 0
	wordOwnerID   = 8
	wordOwnerRank = 16
)

// lifeState is the state of an owner's slot.
type lifeState uint8

// The states:
//
//	free     Join                                          joining   the epoch is one more
//	joining  its words are written                         live
//	live     Renew                                         live      the beat is one more
//	live, joining  unchanged for a lease, as a survivor saw; Leave   ending
//	ending   nothing in the directory is the owner's       free
const (
	lifeFree lifeState = iota
	lifeJoining
	lifeLive
	lifeEnding
)

// lifeWord is the state of an owner, its epoch, and a number which it changes to renew its lease. All three are one word,
// so that a lease cannot be renewed after it was ended, nor ended after it was renewed.
type lifeWord uint64

const epochMask = 1<<24 - 1

func packLife(s lifeState, epoch, beat uint32) lifeWord {
	return lifeWord(s) | lifeWord(epoch&epochMask)<<8 | lifeWord(beat)<<32
}

func (l lifeWord) state() lifeState { return lifeState(l) }

func (l lifeWord) epoch() uint32 { return uint32(l>>8) & epochMask }

// owns reports whether an owner in this state owns what it has reserved in an epoch.
func (l lifeWord) owns(epoch uint16) bool { return l.state() == lifeLive && uint16(l.epoch()) == epoch }

// next returns the word of the next beat.
func (l lifeWord) next() lifeWord { return packLife(l.state(), l.epoch(), uint32(l>>32)+1) }

// withState returns the word in another state.
func (l lifeWord) withState(s lifeState) lifeWord { return l&^0xff | lifeWord(s) }

// sighting is what this process has seen of an owner: since when its life has not changed.
type sighting struct {
	life  lifeWord
	since kv.Mono
}

func (p *View) loadLife(owner int) lifeWord { return lifeWord(p.words.Load(ownerAt(owner) + wordLife)) }

func (p *View) swapLife(owner int, old, next lifeWord) bool {
	return p.words.CompareAndSwap(ownerAt(owner)+wordLife, uint64(old), uint64(next))
}

// Join makes this process an owner, which may reserve and acquire blocks until its lease ends. It is Forbidden if the
// access list does not have the worker, and Overloaded if the pool has its 48 owners. An owner renews its lease several
// times before it ends.
func (p *View) Join(now kv.Mono, worker kv.Worker) error {
	if p.words.Load(wordGeneration) != p.generation {
		return ErrEnded
	}
	if !p.isAllowed(worker.ID) {
		return fault.New(fault.Forbidden, "pool: worker %d is not in the access list of the pool", worker.ID)
	}
	for i := range maxOwners {
		life := p.loadLife(i)
		if life.state() != lifeFree {
			continue
		}
		joining := packLife(lifeJoining, life.epoch()+1, 0)
		if !p.swapLife(i, life, joining) {
			continue
		}
		p.words.Store(ownerAt(i)+wordOwnerID, uint64(worker.ID))
		p.words.Store(ownerAt(i)+wordOwnerRank, uint64(worker.Rank))
		// Only damaged memory has pins of an owner which is free.
		if !p.takeBack(i, joining) || !p.swapLife(i, joining, joining.withState(lifeLive)) {
			continue // a survivor took it for dead
		}
		p.owner, p.life, p.worker, p.renewed = i, joining.withState(lifeLive), worker, now
		p.joins++
		clear(p.holds)
		p.scanFrom = int32(i * p.lay.blocks / maxOwners) // apart from where others search
		return nil
	}
	return fault.New(fault.Overloaded, "pool: %d processes have attached it already", maxOwners)
}

// IsOwner reports whether this process is an owner whose lease was not ended.
func (p *View) IsOwner() bool { return p.life != 0 && p.loadLife(p.owner) == p.life }

// Renew renews the lease. ErrEnded says that it had ended, and that all which was reserved and acquired is lost: the
// process may Join again. Without access the owner leaves, which is Forbidden.
func (p *View) Renew(now kv.Mono) error {
	if p.life == 0 || p.words.Load(wordGeneration) != p.generation {
		return ErrEnded
	}
	if !p.isAllowed(p.worker.ID) {
		p.Leave()
		return fault.New(fault.Forbidden, "pool: worker %d is no longer in the access list of the pool", p.worker.ID)
	}
	next := p.life.next()
	if !p.swapLife(p.owner, p.life, next) {
		p.life = 0
		return ErrEnded
	}
	p.life, p.renewed = next, now
	return nil
}

// Leave ends the lease, and with it all which was reserved and acquired.
func (p *View) Leave() {
	life := p.life
	p.life = 0
	if life != 0 && p.swapLife(p.owner, life, life.withState(lifeEnding)) {
		p.finishOwner(p.owner, life.withState(lifeEnding))
	}
}

// Reclaim ends the leases of owners which have not renewed for a lease, as this process has seen them since it first
// called Reclaim, takes back what they had reserved and acquired, and appends their workers to dead. All processes with a
// pool call it from time to time. Several may, at the same time; a process which dies here leaves the rest to others.
func (p *View) Reclaim(now kv.Mono, dead []kv.Worker) []kv.Worker {
	for i := range maxOwners {
		life := p.loadLife(i)
		seen := &p.sightings[i]
		if seen.life != life {
			*seen = sighting{life, now}
		}
		// A state which there is not, in damaged memory, counts as live.
		if s := life.state(); s != lifeFree && s != lifeEnding && now.Sub(seen.since) >= p.lease {
			worker := kv.Worker{ID: kv.WorkerID(p.words.Load(ownerAt(i) + wordOwnerID)), Rank: uint32(p.words.Load(ownerAt(i) + wordOwnerRank))}
			if !p.swapLife(i, life, life.withState(lifeEnding)) {
				continue
			}
			life = life.withState(lifeEnding)
			if s == lifeLive {
				dead = append(dead, worker)
			}
		}
		if life.state() == lifeEnding {
			p.finishOwner(i, life)
		}
	}
	return dead
}

// finishOwner takes back what an ending owner has in the directory, and frees its slot.
func (p *View) finishOwner(owner int, ending lifeWord) {
	if p.takeBack(owner, ending) {
		p.swapLife(owner, ending, packLife(lifeFree, ending.epoch(), 0))
	}
}

// takeBack evicts orphans and clears the pins of an owner, as long as its life is this one, and reports whether it was.
//
// It changes the pins of every entry, also of entries which the owner does not pin. So an owner which was paused between
// reading pins and changing them fails to change them, and looks at its life again. Several processes may be here at the
// same time: one which was overtaken sees another life before it changes pins, or fails to change them.
func (p *View) takeBack(owner int, life lifeWord) bool {
	for e := range int32(p.lay.blocks) {
		p.dropOrphan(e, p.loadEntry(e))
		at := p.lay.entryAt(e) + wordPins
		for {
			pins := p.words.Load(at)
			if p.loadLife(owner) != life {
				return false
			}
			if p.words.CompareAndSwap(at, pins, unpinBit(pins, owner)+1<<maxOwners) {
				break
			}
		}
	}
	return true
}

// unpinBit returns pins without the pin of an owner.
func unpinBit(pins uint64, owner int) uint64 { return pins &^ (1 << owner) }

// dropOrphan evicts an entry which an owner reserved in an epoch that has ended, and returns what the entry is then.
// Epochs do not return, so it does not matter how much time is between the look at the life and the change.
func (p *View) dropOrphan(e int32, word entryWord) entryWord {
	if word.state() != entryInTransit || word.owner() < maxOwners && p.loadLife(word.owner()).owns(word.epoch()) {
		return word
	}
	next := packEntry(entryEvicted, 0, 0, word.generation())
	if !p.swapEntry(e, word, next) {
		return p.loadEntry(e)
	}
	return next
}
