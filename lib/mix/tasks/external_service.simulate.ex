defmodule Mix.Tasks.ExternalService.Simulate do
  @shortdoc "Shows what the options of a service do in a scenario"

  @moduledoc """
  Prints `ExternalService.simulate/3` of a module that uses `ExternalService`, with its timeline, without starting anything.

      $ mix external_service.simulate MyApp.Mail always_failing:200
      $ mix external_service.simulate MyApp.Mail failing_for:30000 --for 120000 --clients 20 --rate 50

  A scenario is one of

    * `always_failing`, `always_failing:MS`, `slow:MS`, `failing_for:MS`, `intermittent:RATE` - as in `ExternalService.Simulation`
    * `trace:FILE` - of a file with lines such as `success 120` and `failure 5000`: how an attempt went, and its milliseconds

  The options are those of `ExternalService.Simulation`: `--for`, `--clients`, `--rate`, `--seed`, `--max-calls` and
  `--max-attempts`.

  The project is compiled first, and its configuration is loaded, since that may hold defaults for every service.
  What is given to the module's `start_link/1` or `child_spec/1` is not known here.
  """

  use Mix.Task

  alias ExternalService.Definition
  alias ExternalService.Simulation.Chart

  @switches [
    for: :integer,
    clients: :integer,
    rate: :float,
    seed: :integer,
    max_calls: :integer,
    max_attempts: :integer
  ]

  @timed %{"always_failing" => :always_failing, "slow" => :slow, "failing_for" => :failing_for}
  @outcomes %{"success" => :success, "failure" => :failure}

  @impl true
  def run(arguments) do
    case OptionParser.parse(arguments, strict: @switches) do
      {options, [name, scenario], []} ->
        Mix.Task.run("app.config")
        text = name |> service!() |> simulate(name, scenario!(scenario), options) |> Chart.text()
        Mix.shell().info("#{name}, #{scenario}\n\n#{text}")

      {_options, _arguments, [{option, _value} | _]} ->
        Mix.raise("#{option} is no option of mix external_service.simulate, or has no number.")

      _incomplete ->
        Mix.raise("Expected a module and a scenario: mix external_service.simulate MyApp.Mail always_failing")
    end
  end

  defp service!(name), do: with({:error, why} <- Definition.find(name), do: Mix.raise(why))

  # Options that only what is given at the start makes complete are an error here.
  defp simulate(module, name, scenario, options) do
    ExternalService.simulate(Keyword.put_new(module.__external_service__(), :name, module), scenario, options)
  rescue
    exception -> Mix.raise("The options of #{name} can not be simulated so: #{Exception.message(exception)}")
  end

  defp scenario!("always_failing"), do: :always_failing

  defp scenario!(text) do
    with [kind, value] <- String.split(text, ":", parts: 2), {:ok, scenario} <- scenario(kind, value) do
      scenario
    else
      _unknown -> Mix.raise("#{text} is no scenario: mix help external_service.simulate lists them.")
    end
  end

  defp scenario("trace", path) do
    case File.read(path) do
      {:ok, text} ->
        {:ok, {:trace, for(line <- String.split(text, "\n", trim: true), do: recorded!(String.split(line)))}}

      {:error, reason} ->
        Mix.raise("#{path} can not be read: #{:file.format_error(reason)}.")
    end
  end

  defp scenario("intermittent", text) do
    with {rate, ""} <- Float.parse(text), do: {:ok, {:intermittent, rate}}
  end

  defp scenario(kind, text) when is_map_key(@timed, kind) do
    with {ms, ""} when ms >= 0 <- Integer.parse(text), do: {:ok, {@timed[kind], ms}}
  end

  defp scenario(_kind, _value), do: :error

  defp recorded!([outcome, text] = words) when is_map_key(@outcomes, outcome) do
    case Integer.parse(text) do
      {ms, ""} when ms >= 0 -> {@outcomes[outcome], ms}
      _other -> unrecorded!(words)
    end
  end

  defp recorded!(words), do: unrecorded!(words)

  @spec unrecorded!([String.t()]) :: no_return()
  defp unrecorded!(words),
    do:
      Mix.raise("A trace has lines such as `success 120` or `failure 5000`, and not #{inspect(Enum.join(words, " "))}.")
end
