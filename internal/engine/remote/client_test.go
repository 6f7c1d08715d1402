package remote

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

// impolite answers the first calls of every connection and then closes it when another call arrives.
func impolite(t *testing.T, answers int) (at string, calls *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	calls = new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for i := 0; ; i++ {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					calls.Add(1)
					if i >= answers {
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return "http://" + ln.Addr().String(), calls
}

// TestClosedConnection checks that a call on a connection that is being closed is sent once more.
func TestClosedConnection(t *testing.T) {
	at, calls := impolite(t, 1)
	c := clientOf(t, at)
	for i := range 5 {
		body, err := c.ReadBody(t.Context(), &Call{Path: "/x", Body: []byte("{}")}, 10)
		if err != nil || string(body) != "ok" {
			t.Fatalf("call %d: %q, %v", i, body, err)
		}
	}
	if n := calls.Load(); n < 5 || n > 10 {
		t.Errorf("%d calls arrived of 5, each sent twice at most", n)
	}
	c.Close()

	at, calls = impolite(t, 0)
	c = clientOf(t, at)
	_, err := c.ReadBody(t.Context(), &Call{Path: "/x", Body: []byte("{}")}, 10)
	wantFault(t, "an engine that always hangs up", err, fault.Unavailable, "does not answer")
	if n := calls.Load(); n != 2 {
		t.Errorf("it was called %d times, want 2", n)
	}
	c.Close()
}

func TestUnreachable(t *testing.T) {
	at := "http://" + fixturetest.ReserveAddr(t)
	_, err := clientOf(t, at).Do(t.Context(), &Call{Path: "/x"})
	wantFault(t, "nobody listens", err, fault.Unavailable, "see whether it runs")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := clientOf(t, at).Do(ctx, &Call{Path: "/x"}); err != context.Canceled {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestCallAsItArrives(t *testing.T) {
	got := make(chan *http.Request, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if string(b) != "[1,2]" || r.ContentLength != 5 {
			t.Errorf("the body is %q of length %d", b, r.ContentLength)
		}
		got <- r
	})
	c := clientOf(t, s.URL+"/base/")
	large := NewBody()
	large.B = append(large.B, "[1,2]"...)
	a, err := c.Do(t.Context(), &Call{Path: "/v1/x", ID: "a b\r\nc: d", Large: large, Headers: []string{"X-Rank", "3"}})
	large.Release()
	if err != nil {
		t.Fatal(err)
	}
	a.DrainAndClose()
	r := <-got
	if r.Method != http.MethodPost || r.URL.Path != "/base/v1/x" || r.Header.Get("Authorization") != "Bearer secret" ||
		r.Header.Get("X-Request-Id") != "a_b__c:_d" || r.Header.Get("X-Rank") != "3" || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
}

// TestNoAnswer checks that the waits for the first byte and for later ones are bounded.
func TestNoAnswer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begins" {
			events(w, "{}")
		}
		<-r.Context().Done()
	})
	c := clientOf(t, s.URL)
	_, err := c.Do(t.Context(), &Call{Path: "/never", Wait: 20 * time.Millisecond})
	wantFault(t, "no header", err, fault.Unavailable, "did not begin to answer")

	c.maxSilence = 20 * time.Millisecond
	a, err := c.Do(t.Context(), &Call{Path: "/begins"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	e := NewEventReader(a)
	defer e.Release()
	if _, err := e.Next(); err != nil {
		t.Fatal(err)
	}
	_, err = e.Next()
	wantFault(t, "silence", a.ReadError(t.Context(), err), fault.Unavailable, "stopped in the middle")
}

// TestCloseTellsTheEngine checks that an unread response costs the connection, and that a response read to
// its end, or nearly, keeps it.
func TestCloseTellsTheEngine(t *testing.T) {
	gone := make(chan struct{}, 1)
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		events(w, "{}", "[DONE]")
		if r.URL.Path == "/long" {
			<-r.Context().Done()
			gone <- struct{}{}
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	c := clientOf(t, s.URL)
	for range 3 {
		a, err := c.Do(t.Context(), &Call{Path: "/short"})
		if err != nil {
			t.Fatal(err)
		}
		e := NewEventReader(a)
		for data := []byte(nil); string(data) != "[DONE]"; {
			if data, err = e.Next(); err != nil {
				t.Fatal(err)
			}
		}
		a.DrainAndClose()
		e.Release()
	}
	if n := conns.Load(); n > 1 {
		t.Errorf("three answers that were read took %d connections", n)
	}
	a, err := c.Do(t.Context(), &Call{Path: "/long"})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	<-gone
}

func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for _, c := range []struct {
		status     int
		body       string
		code       fault.Code
		says       string
		param      string
		retryAfter time.Duration
	}{
		{400, `{"error":{"message":"Token id 99999 is out of vocabulary","type":"BadRequestError","param":"prompt","code":400}}`, fault.Invalid, "out of vocabulary", "prompt", 0},
		{422, `{"detail":[{"loc":["body"],"input":"my secret prompt"}]}`, fault.Invalid, "fields are not valid", "", 0},
		{400, `{"object":"error","message":"old\nform","code":40001}`, fault.Invalid, "old form", "", 0},
		{400, `{"error":"only words"}`, fault.Invalid, "only words", "", 0},
		{400, "no JSON: " + long, fault.Invalid, "no JSON", "", 0},
		{400, `{"error":{"message":"bad value, 'input': 'my secret prompt'"}}`, fault.Invalid, "bad value", "", 0},
		{413, `{}`, fault.TooLarge, "", "", 0},
		{401, `{"error":"Unauthorized"}`, fault.Unavailable, "api-key-file", "", 0},
		{403, `{"error":{"message":"Scale-out endpoints are disabled."}}`, fault.Unavailable, "disabled", "", 0},
		{404, `{"detail":"Not Found"}`, fault.Unavailable, "Not Found", "", 0},
		{429, ``, fault.Overloaded, "no room", "", 7 * time.Second},
		{500, `{"error":{"message":"EngineCore died"}}`, fault.EngineError, "EngineCore died", "", 0},
		{500, ``, fault.Unavailable, "", "", 0},
		{501, `{"error":{"message":"not here"}}`, fault.Unimplemented, "not here", "", 0},
		{503, `loading`, fault.Unavailable, "loading", "", 7 * time.Second},
		{408, ``, fault.Unavailable, "", "", 0},
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if c.retryAfter > 0 {
				w.Header().Set("Retry-After", "7")
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		a, err := clientOf(t, s.URL).Do(t.Context(), &Call{Path: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		err = a.RefusalError()
		a.Close()
		wantFault(t, c.body, err, c.code, c.says)
		f, ok := err.(*fault.Error)
		if !ok || f.Param != c.param || f.RetryAfter != c.retryAfter {
			t.Errorf("%s: %+v, want param %q, retry after %v", c.body, f, c.param, c.retryAfter)
		}
		if len(err.Error()) > 500 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d: the message has %d bytes, or a prompt: %s", c.status, len(err.Error()), err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "soon": 0, "999999": maxRetryAfter,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		if got := parseRetryAfter(http.Header{"Retry-After": {v}}, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}

func FuzzReadError(f *testing.F) {
	f.Add([]byte(`{"error":{"message":"m","param":"p","code":"404"}}`))
	f.Add([]byte(`{"detail":"x"}`))
	f.Add([]byte("\xff\x00 text"))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := parseErrorBody(body)
		if len(s.message) > maxMessage+len("…") || s.message == "" || strings.ContainsAny(s.message, "\r\n\x00") || len(s.param) > 64 {
			t.Fatalf("%q: %+v", body, s)
		}
		if err := StreamError(body); fault.CodeOf(err) == fault.Internal {
			t.Fatalf("%q: %v", body, err)
		}
	})
}

// TestCleanHidesSecrets checks engine messages that are repeated to clients.
func TestCleanHidesSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"cannot fetch with Authorization: Bearer abc.def-ghi, status 401": "cannot fetch with Authorization: Bearer ***, status 401",
		"api_key=12345 was refused":                                       "api_key=*** was refused",
		`{"password": "hunter2"}`:                                         `{"password": "***"}`,
		"GET http://user:pass@h/x failed":                                 "GET http://user:***@h/x failed",
		"token hf_abcdefgh12345 cannot read the hub":                      "token *** cannot read the hub",
		"CUDA out of memory: 12 tokens":                                   "CUDA out of memory: 12 tokens",
	} {
		if got := SanitizeMessage(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
