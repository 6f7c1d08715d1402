package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// On and Off are the values of switches such as access-log; AccessAdmin and AccessOpen are the values of
// metrics-access.
const (
	On  = "on"
	Off = "off"

	AccessAdmin = "admin"
	AccessOpen  = "open"
)

// EnvKey is the variable with the API key which commands send to the server.
const EnvKey = envPrefix + "API_KEY"

// EnvServer is the variable with the URL of the server which commands and the Python client ask.
const EnvServer = envPrefix + "SERVER"

// EnvBin is the variable with the path of this program, which the Python client starts as a worker.
const EnvBin = envPrefix + "BIN"

// APIKey returns the value of EnvKey; "" if it is not set.
func APIKey(environ []string) string { return lookupEnv(environ, EnvKey) }

// ServerURL returns the value of EnvServer; "" if it is not set.
func ServerURL(environ []string) string { return lookupEnv(environ, EnvServer) }

// lookupEnv returns the value of an environment variable; "" if it is not set.
func lookupEnv(environ []string, name string) (value string) {
	for _, kv := range environ {
		if n, v, _ := strings.Cut(kv, "="); n == name {
			value = v
		}
	}
	return value
}

// TracesEnabled reports whether the environment enables traces. trouble, if not "", says why there are none
// although an endpoint is configured.
func (l *Loaded) TracesEnabled() (on bool, trouble string) { return l.tracesEnabled, l.tracesProblem }

// detectTraces reports whether the environment enables traces, by the standard variables of OpenTelemetry: an
// OTLP endpoint is set and nothing disables it. The OpenTelemetry SDK reads all other variables itself.
func detectTraces(environ []string) (on bool, trouble string) {
	get := func(name string) string { return strings.TrimSpace(lookupEnv(environ, name)) }
	if get("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return false, ""
	}
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || get("OTEL_TRACES_EXPORTER") == "none" {
		return false, ""
	}
	if e := get("OTEL_TRACES_EXPORTER"); e != "" && e != "otlp" {
		return false, fmt.Sprintf("OTEL_TRACES_EXPORTER is %.40q, and otlp is what there is", e)
	}
	protocol := get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = get("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	if protocol != "" && protocol != "http/protobuf" {
		return false, fmt.Sprintf("the protocol of OTEL_EXPORTER_OTLP_PROTOCOL is %.40q, and http/protobuf is what is spoken, by collectors at port 4318", protocol)
	}
	return true, ""
}

// HubCacheDir returns the directory in which Hugging Face programs cache downloaded checkpoints, by their
// standard variables; "" if none of them is set.
func (l *Loaded) HubCacheDir() string { return l.hubCacheDir }

func findHubCacheDir(environ []string) string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := lookupEnv(environ, name); dir != "" {
			return dir
		}
	}
	for _, of := range []struct{ name, below string }{
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
		{"HOME", ".cache/huggingface/hub"},
		{"USERPROFILE", ".cache/huggingface/hub"},
	} {
		if dir := lookupEnv(environ, of.name); dir != "" {
			return filepath.Join(dir, filepath.FromSlash(of.below))
		}
	}
	return ""
}
