package ec2

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// faults stands before something that answers like EC2, moto or the one of this package's tests,
// and adds what that lacks: client tokens, shortage, throttling and answers that are lost.
type faults struct {
	back http.Handler

	mu       sync.Mutex
	answers  map[string]answered // by client token
	short    map[string]string   // by instance type: the error code of all zones
	lose     int                 // so many launches are carried out, and nobody hears of it
	refuse   map[string][]string // by action: error codes, one a call; the last one "..." repeats
	asked    []url.Values        // every call, in order
	silent   bool                // no launch names an instance or an error
	unlisted bool                // lists lack what was launched
}

type answered struct {
	request string
	body    []byte
}

func newFaults(back http.Handler) *faults {
	return &faults{
		back: back, answers: map[string]answered{}, short: map[string]string{},
		refuse: map[string][]string{},
	}
}

// set changes the faults while nobody is served.
func (f *faults) set(change func(*faults)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// calls are those of an action.
func (f *faults) calls(action string) (found []url.Values) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, form := range f.asked {
		if form.Get("Action") == action {
			found = append(found, form)
		}
	}
	return found
}

func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, _ := url.ParseQuery(string(body))
	action := form.Get("Action")
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		_, action, _ = strings.Cut(target, ".")
		form = url.Values{"Action": {action}, "body": {string(body)}}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, form)
	if codes := f.refuse[action]; len(codes) > 0 && action != "" {
		code := codes[0]
		if len(codes) < 2 || codes[1] != "..." {
			f.refuse[action] = codes[1:]
		}
		if action == "GetCallerIdentity" { // STS has a form of its own
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code>"+
				"<Message>injected</Message></Error></ErrorResponse>", code)
			return
		}
		refuse(w, code)
		return
	}
	switch {
	case action == "DescribeInstances" && f.unlisted:
		answer(w, "DescribeInstances", "<reservationSet/>")
	case action != "CreateFleet" || form.Get("DryRun") == "true":
		f.back.ServeHTTP(w, r)
	default:
		f.createFleet(w, r, form)
	}
}

// createFleet answers as EC2 does for a token that it knows. An answer without an instance is one,
// too: a token that brought a shortage brings it again.
func (f *faults) createFleet(w http.ResponseWriter, r *http.Request, form url.Values) {
	token := form.Get("ClientToken")
	form = maps.Clone(form)
	form.Del("ClientToken")
	request := form.Encode()
	if known, ok := f.answers[token]; ok {
		if known.request != request {
			refuse(w, "IdempotentParameterMismatch")
			return
		}
		_, _ = w.Write(known.body)
		return
	}
	rec := httptest.NewRecorder()
	code := f.short[form.Get("LaunchTemplateConfigs.1.Overrides.1.InstanceType")]
	switch {
	case f.silent:
		answer(rec, "CreateFleet", "<fleetId>fleet-1</fleetId><errorSet/><fleetInstanceSet/>")
	case code != "":
		answer(rec, "CreateFleet", "<fleetId>fleet-1</fleetId><fleetInstanceSet/><errorSet>"+
			zoneErrors(form, code)+"</errorSet>")
	default:
		f.back.ServeHTTP(rec, r)
	}
	if rec.Code == http.StatusOK {
		f.answers[token] = answered{request, rec.Body.Bytes()}
	}
	if f.lose > 0 {
		f.lose--
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(rec.Code)
	_, _ = w.Write(rec.Body.Bytes())
}

// zoneErrors has the code for each subnet asked; "code1,code2" are those of the
// first and the second.
func zoneErrors(form url.Values, code string) string {
	codes := strings.Split(code, ",")
	var b strings.Builder
	for i := 1; ; i++ {
		key := fmt.Sprintf("LaunchTemplateConfigs.1.Overrides.%d.", i)
		if !form.Has(key + "SubnetId") {
			return b.String()
		}
		fmt.Fprintf(
			&b, "<item><launchTemplateAndOverrides><overrides><instanceType>%s</instanceType>"+
				"<subnetId>%s</subnetId></overrides></launchTemplateAndOverrides>"+
				"<lifecycle>on-demand</lifecycle><errorCode>%s</errorCode>"+
				"<errorMessage>injected</errorMessage></item>",
			form.Get(key+"InstanceType"), form.Get(key+"SubnetId"), codes[min(i, len(codes))-1])
	}
}

// answer writes an answer of EC2's.
func answer(w http.ResponseWriter, action, inner string) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	fmt.Fprintf(w, `<%sResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">`+
		`<requestId>x</requestId>%s</%sResponse>`, action, inner, action)
}

// refuse writes an error of EC2's, whose documentation has their form. The status is one that EC2
// gives that code.
func refuse(w http.ResponseWriter, code string) {
	status := http.StatusBadRequest
	message := "injected"
	switch code {
	case "RequestLimitExceeded", "InternalError", "Unavailable":
		status = http.StatusServiceUnavailable
	case "UnauthorizedOperation":
		status = http.StatusForbidden
		message = "You are not authorized to perform this operation. " +
			"Encoded authorization failure message: 4GIOHlTkIaWHQD0Q0m6XSnuUMCm"
	case "AuthFailure":
		status = http.StatusUnauthorized
	case "DryRunOperation":
		status = http.StatusPreconditionFailed
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>%s</Code>`+
		`<Message>%s</Message></Error></Errors><RequestID>ea966190-f9aa</RequestID></Response>`,
		code, message)
}

// direct serves requests by a handler without a socket, so that they run in virtual time. A handler
// that panics loses the answer.
type direct struct{ handler http.Handler }

func (d direct) Do(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("read %s: connection reset by peer", r.URL.Host)
		}
	}()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	rec := httptest.NewRecorder()
	d.handler.ServeHTTP(rec, r)
	answer = rec.Result()
	answer.Request = r
	return answer, nil
}

// A tinyEC2 answers what this package asks of AWS, and keeps instances. Like moto it knows no
// tokens and no shortage.
type tinyEC2 struct {
	account   string
	template  string            // the XML of the launch template's data; "" : there is none
	zones     map[string]string // of subnets
	offered   map[string][]string
	arch      map[string]string // of types; else x86_64
	onDemand  map[string]string // the price list's entry, by type
	spot      map[string]string // the price by "type zone"
	addresses int
	page      int // instances on a page

	mu        sync.Mutex
	instances []*tinyInstance
}

type tinyInstance struct {
	id, typ, subnet, state string
	tags                   map[string]string
}

func newTinyEC2() *tinyEC2 {
	return &tinyEC2{
		account: "123456789012", addresses: 200, page: 2,
		template: "<imageId>ami-0123456789abcdef0</imageId>" +
			"<instanceInitiatedShutdownBehavior>terminate</instanceInitiatedShutdownBehavior>" +
			"<metadataOptions><httpTokens>required</httpTokens>" +
			"<instanceMetadataTags>enabled</instanceMetadataTags></metadataOptions>" +
			"<securityGroupIdSet><item>sg-0123456789abcdef0</item></securityGroupIdSet>",
		zones: map[string]string{
			"subnet-0000000a": "us-east-1a", "subnet-0000000b": "us-east-1b",
		},
		offered: map[string][]string{
			"r5n.large":   {"us-east-1a", "us-east-1b", "us-east-1c"},
			"g4dn.xlarge": {"us-east-1b"}, "m7g.large": {"us-east-1a"},
			"c5.large": {"us-east-1f"},
		},
		arch:     map[string]string{"m7g.large": "arm64"},
		onDemand: map[string]string{"r5n.large": "0.1490000000", "g4dn.xlarge": "0.5260000000"},
		spot: map[string]string{
			"r5n.large us-east-1a": "0.041200", "r5n.large us-east-1b": "0.061200",
			"r5n.large us-east-1c": "0.010000",
		},
	}
}

// put adds an instance, as if somebody had launched it.
func (e *tinyEC2) put(i *tinyInstance) *tinyInstance {
	e.mu.Lock()
	defer e.mu.Unlock()
	i.id = fmt.Sprintf("i-%017x", len(e.instances)+1)
	e.instances = append(e.instances, i)
	return i
}

func (e *tinyEC2) setState(id, state string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range e.instances {
		if i.id == id {
			i.state = state
		}
	}
}

func (e *tinyEC2) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Amz-Target") == "AWSPriceListService.GetProducts" {
		e.products(w, r)
		return
	}
	_ = r.ParseForm()
	form, action := r.PostForm, r.PostForm.Get("Action")
	if form.Get("DryRun") == "true" {
		refuse(w, "DryRunOperation")
		return
	}
	switch action {
	case "GetCallerIdentity":
		fmt.Fprintf(w, "<GetCallerIdentityResponse><GetCallerIdentityResult><Account>%s</Account>"+
			"<Arn>arn:aws:iam::%s:user/x</Arn><UserId>x</UserId></GetCallerIdentityResult>"+
			"</GetCallerIdentityResponse>", e.account, e.account)
	case "CreateFleet":
		e.createFleet(w, form)
	case "DescribeInstances":
		e.describe(w, form)
	case "TerminateInstances":
		for _, id := range list(form, "InstanceId.%d") {
			e.setState(id, "shutting-down")
		}
		answer(w, action, "<instancesSet/>")
	case "CreateTags":
		e.tag(form)
		answer(w, action, "<return>true</return>")
	default:
		answer(w, action, e.fixed(action, form))
	}
}

// fixed is the inside of an answer that depends on no instance.
func (e *tinyEC2) fixed(action string, form url.Values) string {
	var b strings.Builder
	values := list(form, "Filter.1.Value.%d")
	switch action {
	case "DescribeSubnets":
		for _, id := range values {
			if zone := e.zones[id]; zone != "" {
				fmt.Fprintf(
					&b, "<item><subnetId>%s</subnetId><availabilityZone>%s</availabilityZone>"+
						"<availableIpAddressCount>%d</availableIpAddressCount></item>", id, zone,
					e.addresses)
			}
		}
		return "<subnetSet>" + b.String() + "</subnetSet>"
	case "DescribeInstanceTypeOfferings":
		for _, t := range values {
			for _, zone := range e.offered[t] {
				fmt.Fprintf(
					&b, "<item><instanceType>%s</instanceType><location>%s</location></item>",
					t, zone)
			}
		}
		return "<instanceTypeOfferingSet>" + b.String() + "</instanceTypeOfferingSet>"
	case "DescribeInstanceTypes":
		for _, t := range list(form, "InstanceType.%d") {
			arch := e.arch[t]
			if arch == "" {
				arch = "x86_64"
			}
			fmt.Fprintf(&b, "<item><instanceType>%s</instanceType><processorInfo>"+
				"<supportedArchitectures><item>%s</item></supportedArchitectures></processorInfo>"+
				"</item>", t, arch)
		}
		return "<instanceTypeSet>" + b.String() + "</instanceTypeSet>"
	case "DescribeSpotPriceHistory":
		for _, key := range slices.Sorted(maps.Keys(e.spot)) {
			t, zone, _ := strings.Cut(key, " ")
			if slices.Contains(list(form, "InstanceType.%d"), t) {
				fmt.Fprintf(&b, "<item><instanceType>%s</instanceType><spotPrice>%s</spotPrice>"+
					"<availabilityZone>%s</availabilityZone>"+
					"<timestamp>2026-11-22T10:00:00.000Z</timestamp></item>", t, e.spot[key], zone)
			}
		}
		return "<spotPriceHistorySet>" + b.String() + "</spotPriceHistorySet>"
	case "DescribeLaunchTemplateVersions":
		if e.template == "" {
			return "<launchTemplateVersionSet/>"
		}
		return "<launchTemplateVersionSet><item><launchTemplateId>lt-0123456789abcdef0" +
			"</launchTemplateId><versionNumber>7</versionNumber><launchTemplateData>" + e.template +
			"</launchTemplateData></item></launchTemplateVersionSet>"
	}
	return ""
}

func (e *tinyEC2) createFleet(w http.ResponseWriter, form url.Values) {
	i := e.put(&tinyInstance{
		typ:    form.Get("LaunchTemplateConfigs.1.Overrides.1.InstanceType"),
		subnet: form.Get("LaunchTemplateConfigs.1.Overrides.1.SubnetId"),
		state:  "pending", tags: map[string]string{},
	})
	for n := 1; form.Has(fmt.Sprintf("TagSpecification.%d.ResourceType", n)); n++ {
		prefix := fmt.Sprintf("TagSpecification.%d.", n)
		if form.Get(prefix+"ResourceType") != "instance" {
			continue
		}
		for m := 1; form.Has(fmt.Sprintf("%sTag.%d.Key", prefix, m)); m++ {
			key := fmt.Sprintf("%sTag.%d.", prefix, m)
			i.tags[form.Get(key+"Key")] = form.Get(key + "Value")
		}
	}
	answer(w, "CreateFleet", fmt.Sprintf("<fleetId>fleet-1</fleetId><errorSet/><fleetInstanceSet>"+
		"<item><instanceIds><item>%s</item></instanceIds><instanceType>%s</instanceType>"+
		"<launchTemplateAndOverrides><overrides><subnetId>%s</subnetId></overrides>"+
		"</launchTemplateAndOverrides></item></fleetInstanceSet>", i.id, i.typ, i.subnet))
}

func (e *tinyEC2) describe(w http.ResponseWriter, form url.Values) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name, values := form.Get("Filter.1.Name"), list(form, "Filter.1.Value.%d")
	var found []*tinyInstance
	for _, i := range e.instances {
		is := i.id
		if key, ok := strings.CutPrefix(name, "tag:"); ok {
			is = i.tags[key]
		}
		if slices.Contains(values, is) {
			found = append(found, i)
		}
	}
	var from int
	_, _ = fmt.Sscan(form.Get("NextToken"), &from)
	next := min(from+e.page, len(found))
	var b strings.Builder
	for _, i := range found[from:next] {
		fmt.Fprintf(&b, "<item><instancesSet><item><instanceId>%s</instanceId><instanceType>%s"+
			"</instanceType><instanceState><name>%s</name></instanceState>"+
			"<placement><availabilityZone>%s</availabilityZone></placement>"+
			"<launchTime>2026-11-22T10:00:00.000Z</launchTime><tagSet>", i.id, i.typ, i.state,
			e.zones[i.subnet])
		for _, key := range slices.Sorted(maps.Keys(i.tags)) {
			b.WriteString("<item><key>")
			_ = xml.EscapeText(&b, []byte(key))
			b.WriteString("</key><value>")
			_ = xml.EscapeText(&b, []byte(i.tags[key]))
			b.WriteString("</value></item>")
		}
		b.WriteString("</tagSet></item></instancesSet></item>")
	}
	inner := "<reservationSet>" + b.String() + "</reservationSet>"
	if next < len(found) {
		inner += fmt.Sprintf("<nextToken>%d</nextToken>", next)
	}
	answer(w, "DescribeInstances", inner)
}

func (e *tinyEC2) tag(form url.Values) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range e.instances {
		if slices.Contains(list(form, "ResourceId.%d"), i.id) {
			for n := 1; form.Has(fmt.Sprintf("Tag.%d.Key", n)); n++ {
				i.tags[form.Get(fmt.Sprintf("Tag.%d.Key", n))] =
					form.Get(fmt.Sprintf("Tag.%d.Value", n))
			}
		}
	}
}

// products answers as the price list does, whose documentation has the form.
func (e *tinyEC2) products(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	for t, usd := range e.onDemand {
		if strings.Contains(string(body), `"`+t+`"`) {
			product := fmt.Sprintf(`{"product":{"productFamily":"Compute Instance","attributes":`+
				`{"instanceType":"%s"}},"terms":{"OnDemand":{"A.J":{"priceDimensions":{"A.J.6":`+
				`{"unit":"Hrs","pricePerUnit":{"USD":"%s"}}}}},"Reserved":{"A.R":`+
				`{"priceDimensions":{"A.R.1":{"unit":"Quantity","pricePerUnit":{"USD":"812"}}}}}}}`,
				t, usd)
			fmt.Fprintf(w, `{"FormatVersion":"aws_v1","PriceList":[%q]}`, product)
			return
		}
	}
	_, _ = io.WriteString(w, `{"FormatVersion":"aws_v1","PriceList":[]}`)
}

// list are the values of a form's numbered keys, from 1 on.
func list(form url.Values, key string) (values []string) {
	for n := 1; form.Has(fmt.Sprintf(key, n)); n++ {
		values = append(values, form.Get(fmt.Sprintf(key, n)))
	}
	return values
}
