package config

import (
	"fmt"
	"strings"
)

// On and Off are the values of switches such as AccessLog; AccessAdmin and AccessOpen are the values of
// MetricsAccess.
const (
	On  = "on"
	Off = "off"

	AccessAdmin = "admin"
	AccessOpen  = "open"
)

// checkHTTP checks the settings of the HTTP server.
func (p *problems) checkHTTP(c *Config) {
	p.requirePair("tls-cert", c.TLSCert, "tls-key", c.TLSKey)
	p.requireOneOf("metrics-access", c.MetricsAccess, AccessAdmin, AccessOpen)
	p.requireOneOf("access-log", c.AccessLog, On, Off)
	if c.RequestTimeout < 0 {
		p.report("request-timeout", fmt.Sprintf("%v must not be negative; 0s is no bound", c.RequestTimeout))
	}
	p.requirePositive("header-timeout", c.HeaderTimeout)
	p.requirePositive("body-timeout", c.BodyTimeout)
	p.requirePositive("write-timeout", c.WriteTimeout)
	p.requirePositive("idle-timeout", c.IdleTimeout)
	p.requireBetween("max-connections", int64(c.MaxConnections), 1, 1<<24)
	p.requireBetween("max-header-bytes", int64(c.MaxHeaderBytes), 4096, 16<<20)
}

// EnvKey is the variable with the API key which commands send to the server.
const EnvKey = envPrefix + "API_KEY"

// APIKey returns the value of EnvKey; "" if it is not set.
func APIKey(environ []string) string { return lookupEnv(environ, EnvKey) }

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
