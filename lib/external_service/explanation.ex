defmodule ExternalService.Explanation do
  # What the options of a service amount to, as a text for people: sections of rows, each a label and what it says.
  @moduledoc false

  alias ExternalService.{ConfigCheck, Configuration, Explanation.Sections, Lifecycle, Service}

  @unnamed "this configuration"

  @doc "Explains a started service, or one that would be started with these options, by `module` if that is one's."
  @spec of(ExternalService.service() | keyword(), module() | nil) :: String.t()
  def of(subject, module \\ nil) do
    if Keyword.keyword?(subject), do: explain_options(subject, module), else: explain_service(subject)
  end

  defp explain_options(options, module) do
    {name, options} = Keyword.pop(options, :name, @unnamed)
    text(Lifecycle.figures(name, options, module))
  end

  defp explain_service(name) do
    case Service.get(name) do
      nil -> Service.not_started(name)
      service -> text(Configuration.new(name, service.options, service.retry, service.breaker_options))
    end
  end

  @doc "Returns the text about a configuration."
  @spec text(Configuration.t()) :: String.t()
  def text(%Configuration{name: name, options: options} = figures) do
    findings = ConfigCheck.findings(name, options)
    sections = Sections.of(figures, for(%{check: check} <- findings, do: check)) ++ warnings(findings)
    Enum.join([inspect(name) | Enum.map(sections, &section/1)], "\n\n")
  end

  defp warnings([]), do: []
  defp warnings(findings), do: [{"warnings", for(finding <- findings, do: {"#{finding.check}", finding.message})}]

  defp section({title, rows}) do
    width = rows |> Enum.map(fn {label, _value} -> String.length(label) end) |> Enum.max()
    lines = for {label, value} <- rows, do: "    #{String.pad_trailing(label, width)}  #{value}"
    Enum.join(["  " <> title | lines], "\n")
  end
end
