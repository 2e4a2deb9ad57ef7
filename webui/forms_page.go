package webui

import (
	"strconv"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

// form is what the set-up and the sign-in page show.
type form struct {
	frame
	token   string
	refusal string // of the last try
}

func setUpPage(f form) g.Node {
	minimum := strconv.Itoa(minPassword)
	return f.door(levelOK,
		h.H1(g.Text("Set up this gateway")),
		note("gateway", f.gateway),
		h.P(h.Class("lead"), g.Text("Nobody has set a password yet. The set-up code shows that you have access to the machine.")),
		refusal(f.refusal),
		h.Form(h.Method("post"), h.Action("/set-up"),
			token(f.token),
			username(),
			h.Label(h.For("code"), g.Text("Set-up code")),
			h.Input(h.ID("code"), h.Name("code"), h.Class("code"), h.Required(), h.AutoFocus(), h.AutoComplete("one-time-code"),
				g.Attr("autocapitalize", "characters"), g.Attr("spellcheck", "false"), h.MaxLength("32"), h.Placeholder("ABCD-EFGH"),
				h.Aria("describedby", "code-hint")),
			h.P(h.Class("hint"), h.ID("code-hint"), g.Text("The gateway’s log shows it at each start: "),
				h.Code(g.Text("journalctl -u edge-gateway | grep setup_code"))),
			h.Label(h.For("password"), g.Text("New password")),
			h.Input(h.ID("password"), h.Name("password"), h.Type("password"), h.Required(), h.MinLength(minimum), h.MaxLength("72"),
				h.AutoComplete("new-password"), h.Aria("describedby", "password-hint")),
			h.P(h.Class("hint"), h.ID("password-hint"), g.Text("At least "+minimum+" characters. A few words in a row are easy to remember.")),
			h.Label(h.For("again"), g.Text("Password again")),
			h.Input(h.ID("again"), h.Name("again"), h.Type("password"), h.Required(), h.MaxLength("72"), h.AutoComplete("new-password")),
			h.Button(h.Type("submit"), g.Text("Set password and open the page")),
		),
	)
}

func signInPage(f form) g.Node {
	return f.door(levelOK,
		h.H1(g.Text("Sign in")),
		note("gateway", f.gateway),
		refusal(f.refusal),
		h.Form(h.Method("post"), h.Action("/sign-in"),
			token(f.token),
			username(),
			h.Label(h.For("password"), g.Text("Password")),
			h.Input(h.ID("password"), h.Name("password"), h.Type("password"), h.Required(), h.AutoFocus(), h.MaxLength("72"),
				h.AutoComplete("current-password")),
			h.Button(h.Type("submit"), g.Text("Sign in")),
		),
		h.Details(
			h.Summary(g.Text("Forgotten the password?")),
			h.P(g.Text("On the machine, remove "), h.Code(g.Text("page.json")), g.Text(" from the gateway’s state directory and restart the "+
				"gateway. Its log then shows a new set-up code. Nothing else is lost.")),
		),
	)
}

// username is for password managers, which want one; people do not see it.
func username() g.Node {
	return h.Input(h.Type("text"), h.Name("username"), h.Value("admin"), h.AutoComplete("username"), h.Class("away"), h.TabIndex("-1"),
		h.Aria("hidden", "true"))
}

func refusal(text string) g.Node {
	return g.If(text != "", h.P(h.Class("refusal"), h.Role("alert"), icon(levelError), h.Span(g.Text(text))))
}
