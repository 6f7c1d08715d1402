package config

import (
	"strings"
	"testing"
)

func TestTraces(t *testing.T) {
	const to = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
	for _, c := range []struct {
		environ []string
		on      bool
		trouble string
	}{
		{nil, false, ""},
		{[]string{"OTEL_SERVICE_NAME=x", "OTEL_EXPORTER_OTLP_ENDPOINT="}, false, ""},
		{[]string{to}, true, ""},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/v1/traces"}, true, ""},
		{[]string{to, "OTEL_SDK_DISABLED=TRUE"}, false, ""},
		{[]string{to, "OTEL_TRACES_EXPORTER=none"}, false, ""},
		{[]string{to, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}, true, ""},
		{[]string{to, "OTEL_TRACES_EXPORTER=zipkin"}, false, "zipkin"},
		{[]string{to, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, false, "http/protobuf is what is spoken"},
		{[]string{to, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, true, ""},
	} {
		on, trouble := detectTraces(c.environ)
		if on != c.on || (trouble == "") != (c.trouble == "") || !strings.Contains(trouble, c.trouble) {
			t.Errorf("%v: %v, %q", c.environ, on, trouble)
		}
	}
}

// TestVariablesOfPrograms: variables of the prefix which are no settings, such as those of the Python client, are no error.
func TestVariablesOfPrograms(t *testing.T) {
	if _, err := Load("", []string{"PENSTOCK_BIN=/usr/bin/penstock", "PENSTOCK_SERVER=http://h:1", "PENSTOCK_API_KEY=k"}, nil); err != nil {
		t.Error(err)
	}
}

func TestDoor(t *testing.T) {
	l, err := Load("", []string{"PENSTOCK_API_KEY=sk-x", "PENSTOCK_REQUEST_TIMEOUT=0s", "PENSTOCK_ACCESS_LOG=on"}, nil)
	if err != nil || l.HTTP.AccessLog != On || APIKey([]string{"A=b", "PENSTOCK_API_KEY=sk-x"}) != "sk-x" {
		t.Errorf("%+v, %v", l, err)
	}
	if up, front := Defaults(Up), Defaults(Frontend); up.HTTP.AccessLog != Off || front.HTTP.AccessLog != On {
		t.Errorf("the access log is %s for up, %s for a frontend", up.HTTP.AccessLog, front.HTTP.AccessLog)
	}
	_, err = Load("", []string{
		"PENSTOCK_TLS_CERT=cert.pem", "PENSTOCK_METRICS_ACCESS=all", "PENSTOCK_ACCESS_LOG=maybe", "PENSTOCK_REQUEST_TIMEOUT=-1s",
		"PENSTOCK_HEADER_TIMEOUT=0s", "PENSTOCK_BODY_TIMEOUT=0s", "PENSTOCK_WRITE_TIMEOUT=0s", "PENSTOCK_IDLE_TIMEOUT=0s", "PENSTOCK_MAX_HEADER_BYTES=1", "PENSTOCK_MAX_CONNECTIONS=0",
	}, nil)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"tls-key", "metrics-access", "access-log", "request-timeout", "header-timeout", "body-timeout", "write-timeout", "idle-timeout", "max-header-bytes", "max-connections"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in:\n%v", want, err)
		}
	}
}
