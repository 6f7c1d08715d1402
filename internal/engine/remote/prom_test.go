package remote

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const exposition = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="ti}ny"} 3.0
vllm:num_requests_running{engine="1",model_name="a\"b\\"} 4
vllm:kv_cache_usage_perc{engine="0"} 0.515625
vllm:cache_config_info{block_size="32",num_gpu_blocks="64",hash_block_size="None", enable_prefix_caching="True",} 1.0
vllm:lora_requests_info{max_lora="1",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 1
process_start_time_seconds 1.76e+09
vllm:no_value
vllm:broken{x="y 3
vllm:nan NaN
vllm:stamped 5 1700000000
`

func TestSamples(t *testing.T) {
	var got []string
	EachSample([]byte(exposition), "vllm:", func(s MetricSample) {
		got = append(got, fmt.Sprintf("%s %v engine=%q block=%q lora=%q", s.Name, s.Value, s.LabelValue("engine"), s.LabelValue("block_size"), s.LabelValue("running_lora_adapters")))
	})
	want := []string{
		`vllm:num_requests_running 3 engine="0" block="" lora=""`,
		`vllm:num_requests_running 4 engine="1" block="" lora=""`,
		`vllm:kv_cache_usage_perc 0.515625 engine="0" block="" lora=""`,
		`vllm:cache_config_info 1 engine="" block="32" lora=""`,
		`vllm:lora_requests_info 1.7e+09 engine="" block="" lora="a,b"`,
		`vllm:e2e_request_latency_seconds_bucket 1 engine="" block="" lora=""`,
		`vllm:nan NaN engine="" block="" lora=""`,
		`vllm:stamped 5 engine="" block="" lora=""`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSamplesDoNotAllocate(t *testing.T) {
	text := []byte(strings.Repeat("vllm:x{engine=\"0\",le=\"0.5\"} 17.25\n", 1000))
	sum := 0.0
	if n := testing.AllocsPerRun(20, func() {
		EachSample(text, "vllm:", func(s MetricSample) {
			if string(s.LabelValue("engine")) == "0" {
				sum += s.Value
			}
		})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzSamples(f *testing.F) {
	f.Add([]byte(exposition))
	f.Add([]byte(`a{b="c\"} 1`))
	f.Fuzz(func(t *testing.T, text []byte) {
		EachSample(text, "", func(s MetricSample) {
			if len(s.Name) == 0 || len(s.Name) > len(text) {
				t.Fatalf("name %q", s.Name)
			}
			for _, name := range []string{"", "b", "engine"} {
				_ = s.LabelValue(name)
			}
		})
	})
}
