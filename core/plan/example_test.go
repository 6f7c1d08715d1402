package plan_test

import (
	"fmt"
	"time"

	"penstock/core/kv"
	"penstock/core/plan"
)

// A fleet of two workers gets four times the traffic, and its connector starts what is ordered.
func Example() {
	// 16 ms for a prefill and 15 µs for each token; 10 ms for a step of one sequence, 30 ms for one of 64.
	model, err := plan.NewTableModel([]float64{0, 8000}, []float64{16, 136}, []float64{1, 64}, []float64{0},
		[][]float64{{10}, {30}})
	if err != nil {
		fmt.Println(err)
		return
	}
	planner, err := plan.New(plan.Config{
		Roles:   []plan.RoleConfig{{Role: plan.Aggregated, Ceiling: 16, Models: []plan.EngineModel{model}}},
		Targets: plan.Targets{TTFT: 500 * time.Millisecond, ITL: 25 * time.Millisecond},
		Budget:  16,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var now kv.Mono // of the caller's clock
	workers := 2
	for i, arrivals := range []float64{150, 150, 600, 600} {
		now = now.Add(30 * time.Second)
		p := planner.HandleInterval(now, plan.Observation{
			Traffic: &plan.Traffic{
				At: now, Arrivals: arrivals, InputTokens: 800, InputSpread: 1, OutputTokens: 200, TTFT: 90, ITL: 15,
			},
			Fleet: []plan.RoleFleet{{Ready: workers}},
		})
		r := p.Roles[0]
		fmt.Printf("%.0f/s by %s: %d desired, %d feasible, %d actual\n", p.Forecast.Raised, p.Forecast.Method, r.Desired,
			r.Feasible, r.Actual)
		fmt.Printf("  order %d: %s\n", r.Order, r.Reason)
		if i == 2 {
			workers = r.Order
		}
	}
	// Output:
	// 5/s by last: 1 desired, 1 feasible, 2 actual
	//   order 2: hold: 1 would do, and metrics are known for less than 5m0s
	// 5/s by last: 1 desired, 1 feasible, 2 actual
	//   order 2: hold: 1 would do, and metrics are known for less than 5m0s
	// 20/s by last: 4 desired, 4 feasible, 2 actual
	//   order 4: start 2: 4 workers are needed, by ITL
	// 20/s by last: 4 desired, 4 feasible, 4 actual
	//   order 4: keep: 4 workers are needed, by ITL
}
