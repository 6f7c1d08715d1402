package encode

import (
	"errors"
	"fmt"
	"slices"

	"penstock/core/kv"
)

// Check returns an error if an invariant does not hold: the sums are the sums over the records and within their budgets,
// each object is in one place, each list has what it should, nothing waits which could go on, and an idle machine holds
// nothing but kept rows. It is for tests.
func (m *Machine) Check() error {
	c := &checker{Machine: m, holders: map[*rows]int{}}
	c.checkRuns()
	c.checkQueues()
	c.checkRequests()
	c.checkStages()
	c.checkRows()
	c.checkEnds()
	return errors.Join(c.errs...)
}

// checker collects what is wrong.
type checker struct {
	*Machine
	holders map[*rows]int // found
	errs    []error
}

func (c *checker) must(ok bool, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("encode: "+format, args...))
	}
}

func (c *checker) checkRuns() {
	runs, objects := 0, 0
	for i, e := range c.encoders {
		jobs, started := 0, 0
		for _, r := range e.runs {
			live := 0
			if !r.part {
				started++
			}
			for at, item := range r.items {
				c.holders[item.rows]++
				if o := item.object; o != nil {
					live++
					c.must(o.run == r && o.slot == at && o.rows == item.rows && o.state == Encoding, "item %d of run %d is not its object", at, r.id)
				}
			}
			c.must(c.runs[r.id] == r && r.encoder == e && live == r.live && len(r.items) > 0, "run %d with %d live items, not %d", r.id, live, r.live)
			jobs += len(r.items)
		}
		c.must(jobs == e.jobs && jobs <= e.limits.Jobs && (e.limits.Runs == 0 || started <= e.limits.Runs), "encoder %d has %d objects in %d runs, its count is %d", e.id, jobs, len(e.runs), e.jobs)
		c.must(i == 0 || c.encoders[i-1].id < e.id, "encoder %d is out of order", e.id)
		runs, objects = runs+len(e.runs), objects+jobs
	}
	c.must(runs == len(c.runs), "%d runs, %d of encoders", len(c.runs), runs)
	c.must(objects == c.running && objects <= c.cfg.MaxJobs, "%d permits of %d are held, %d are counted", objects, c.cfg.MaxJobs, c.running)
}

func (c *checker) checkQueues() {
	c.must(len(c.byShape) == len(c.groups), "%d shapes of %d groups", len(c.byShape), len(c.groups))
	for _, g := range slices.Concat(c.groups, c.retries) {
		if len(g.objects) == 0 {
			c.must(false, "a group is empty")
			continue
		}
		shape := batchShape{g.objects[0].Kind, g.objects[0].Shape}
		for i, o := range g.objects {
			c.must(o.group == g && o.run == nil && o.rows != nil && o.Kind == shape.kind && o.Shape == shape.shape, "object %d.%d is in a group and should not be", o.request.id, o.index)
			c.must(i == 0 || g.objects[i-1].order < o.order, "object %d.%d is out of order", o.request.id, o.index)
		}
		c.must(g.retry || c.byShape[shape] == g, "a group is not found by its shape")
	}
	if e := c.leastLoaded(); e != nil && len(c.groups)+len(c.retries) > 0 {
		c.must(len(c.retries) == 0 && e.jobs > 0, "objects wait, and encoder %d with %d is idle or should run others again", e.id, e.jobs)
	}
	if first := c.stageQueue.Front(); first != nil {
		c.must(first.Value.(*stagingHold).bytes > c.cfg.StagingBudget-c.stagingUsed, "a request waits for staging memory, and there is enough")
	}
}

func (c *checker) checkRequests() {
	unsettled, waiting, objects := 0, 0, 0
	for id, q := range c.requests {
		unfinished, failed := 0, 0
		for i := range q.objects {
			o := &q.objects[i]
			queued := o.group != nil || o.run != nil
			wantRows := q.waiting == nil
			switch {
			case q.state != Encoding:
				wantRows = q.state == EncodedCPU || q.retention != DiscardRows
				c.must(o.state == EncodedCPU && !queued, "object %d.%d of a request which was reported is in state %v", id, i, o.state)
			case o.state == Encoding:
				unfinished++
				c.must(queued == wantRows, "object %d.%d waits for an encoder: %t, its request for memory: %t", id, i, queued, !wantRows)
			case o.state == Discarded:
				failed++
				wantRows = false
			default:
				wantRows = true
			}
			c.must((o.rows != nil) == wantRows, "object %d.%d in state %v has rows: %t", id, i, q.state, o.rows != nil)
			c.must(o.request == q && o.index == i && (o.group == nil || o.run == nil), "object %d.%d is in two places", id, i)
			if o.rows != nil {
				c.holders[o.rows]++
			}
		}
		c.must(q.id == id && unfinished == q.unfinished && failed == len(q.failures), "request %d has %d unfinished and %d failed objects", id, unfinished, failed)
		c.must((q.state == Encoding) == (q.unfinished > 0) && (q.unsettled != nil) == (q.unfinished > 0), "request %d in state %v has %d unfinished objects", id, q.state, q.unfinished)
		c.must(q.stage == nil || c.stages[id] == q.stage && q.stage.request == q, "request %d has a stage which is not found", id)
		c.must((q.state == Staged) == (q.stage != nil && q.stage.copied), "request %d is in state %v", id, q.state)
		objects += q.weight()
		if q.unsettled != nil {
			unsettled++
		}
		if q.waiting != nil {
			waiting++
		}
	}
	c.must(unsettled == c.unsettled.Len() && waiting == c.waiting.Len(), "%d requests are not reported and %d wait", unsettled, waiting)
	c.must(objects == c.objects && objects+c.orphans <= c.cfg.MaxObjects, "%d objects are here, %d are counted", objects, c.objects)
}

func (c *checker) checkStages() {
	granted, queued, orphans := int64(0), 0, 0
	for id, s := range c.stages {
		for _, r := range s.copyFrom {
			c.holders[r]++
		}
		c.must(s.id == id && (s.request == nil || c.requests[id] == s.request), "the stage of request %d is another one's", id)
		if s.request == nil {
			orphans++
		}
		if s.queued != nil {
			queued++
			continue
		}
		granted += s.bytes
	}
	c.must(granted == c.stagingUsed && granted <= c.cfg.StagingBudget, "%d bytes of %d are staged, %d are counted", granted, c.cfg.StagingBudget, c.stagingUsed)
	c.must(queued == c.stageQueue.Len() && orphans == c.orphans, "%d requests wait for staging memory and %d have ended", queued, orphans)
}

func (c *checker) checkRows() {
	idle := 0
	for key, r := range c.kept {
		c.must(r.kept && r.key == key && key != kv.Digest{} && r.id != 0, "kept rows %d are not the rows of their key", r.id)
		c.must((r.idle != nil) == (c.holders[r] == 0), "kept rows %d with %d holders are idle: %t", r.id, c.holders[r], r.idle != nil)
		c.holders[r] += 0 // found
		if r.idle != nil {
			idle++
		}
	}
	used, idleBytes := int64(0), int64(0)
	for r, n := range c.holders {
		c.must(n == r.holders && (n > 0 || r.kept), "rows %d have %d holders, %d are counted", r.id, n, r.holders)
		c.must(r.id != 0 || r.bytes == 0, "a pin counts %d bytes", r.bytes)
		used += r.bytes
		if n == 0 {
			idleBytes += r.bytes
		}
	}
	c.must(used == c.cpuUsed && used <= c.cfg.CPUBudget, "rows have %d bytes of %d, %d are counted", used, c.cfg.CPUBudget, c.cpuUsed)
	c.must(idle == c.idle.Len() && idleBytes == c.idleBytes, "%d kept rows with %d bytes are idle, %d with %d are counted", idle, idleBytes, c.idle.Len(), c.idleBytes)
}

func (c *checker) checkEnds() {
	ended := uint64(0)
	for _, n := range c.stats.Ended {
		ended += n
	}
	c.must(c.stats.Requests == ended+uint64(len(c.requests)), "%d submits, %d ends and %d requests", c.stats.Requests, ended, len(c.requests))
	if len(c.requests)+len(c.runs)+len(c.stages) == 0 {
		c.must(c.cpuUsed == c.idleBytes && c.stagingUsed == 0 && c.running == 0 && c.objects == 0 && c.orphans == 0,
			"an idle machine holds %d bytes, %d of them kept, %d of staging memory and %d permits", c.cpuUsed, c.idleBytes, c.stagingUsed, c.running)
	}
}
