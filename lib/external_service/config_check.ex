defmodule ExternalService.ConfigCheck do
  # Tells of options that are allowed and yet hardly what anybody wants. What is done about them is for
  # `config :external_service, on_suspicious_config: :warn | :raise | :ignore` to say.
  @moduledoc false

  require Logger

  alias ExternalService.{ConfigCheck.Findings, Configuration, Options}

  @actions [:warn, :raise, :ignore]

  @type finding :: %{check: atom(), message: String.t()}

  @doc "Returns what is suspicious about these options, which nobody needs to have checked."
  @spec findings(ExternalService.service(), term()) :: [finding()]
  def findings(name, options), do: name |> Configuration.read(options) |> Findings.of()

  @doc """
  Reports what is suspicious about the options of a service that is about to be started: each in the log, or all in an
  `ArgumentError`.

  Of a service that is only changed, what `before` had already is not told again.
  """
  @spec report(ExternalService.service(), keyword(), keyword() | nil) :: :ok
  def report(name, options, before \\ nil) do
    act(fn -> findings(name, options) -- known(name, before) end, &Logger.warning/1)
  end

  @doc "Reports the same of the options of a module that is being compiled: as warnings of the compiler."
  @spec report_compiled(ExternalService.service(), term(), Macro.Env.t()) :: :ok
  def report_compiled(name, options, env) do
    defaults = Application.get_env(:external_service, :defaults, [])
    act(fn -> findings(name, Options.merge(defaults, options)) end, &IO.warn(&1, env))
  end

  defp known(_name, nil), do: []
  defp known(name, before), do: findings(name, before)

  defp act(find, warn) do
    case action!() do
      :ignore -> :ok
      :warn -> Enum.each(find.(), &warn.(&1.message))
      :raise -> raise_all(find.())
    end
  end

  defp raise_all([]), do: :ok
  defp raise_all(findings), do: raise(ArgumentError, Enum.map_join(findings, "\n\n", & &1.message))

  defp action! do
    action = Application.get_env(:external_service, :on_suspicious_config, :warn)

    unless action in @actions do
      raise ArgumentError,
            "invalid value for `config :external_service, on_suspicious_config: ...`: expected one of " <>
              "#{inspect(@actions)}, got: #{inspect(action)}"
    end

    action
  end
end
