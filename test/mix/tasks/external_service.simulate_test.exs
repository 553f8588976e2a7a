# SPDX-License-Identifier: Apache-2.0

defmodule Mix.Tasks.ExternalService.SimulateTest do
  # The shell of mix is one for all.
  use ExternalService.Case, async: false

  alias ExternalService.Simulation.Chart
  alias Mix.Tasks.ExternalService.Simulate

  defmodule Mail do
    use ExternalService, circuit_breaker: [tolerate: 15], retry: [base: 100, max_attempts: 3]
  end

  defmodule Incomplete do
    use ExternalService, rate_limit: [limit: 10]
  end

  defmodule Other do
  end

  @options [circuit_breaker: [tolerate: 15], retry: [base: 100, max_attempts: 3]]

  setup do
    shell = Mix.shell()
    on_exit(fn -> Mix.shell(shell) end)
    Mix.shell(Mix.Shell.Process)
  end

  defp told(arguments) do
    Simulate.run(arguments)
    assert_received {:mix_shell, :info, [text]}
    text
  end

  defp drawn(scenario, options \\ []), do: Chart.text(ExternalService.simulate(@options, scenario, options))

  defp refused(arguments), do: Exception.message(assert_raise(Mix.Error, fn -> Simulate.run(arguments) end))

  test "draws what simulate/3 says of the module's options, and starts nothing" do
    assert told([inspect(Mail), "always_failing:200"]) ==
             "#{inspect(Mail)}, always_failing:200\n\n#{drawn({:always_failing, 200})}"

    assert Mail not in ExternalService.services()
  end

  test "knows every scenario" do
    for {text, scenario} <- [
          {"always_failing", :always_failing},
          {"slow:30", {:slow, 30}},
          {"failing_for:300", {:failing_for, 300}},
          {"intermittent:0.4", {:intermittent, 0.4}},
          {"intermittent:1", {:intermittent, 1.0}}
        ] do
      assert String.ends_with?(told([inspect(Mail), text]), drawn(scenario))
    end
  end

  @tag :tmp_dir
  test "reads a trace from a file", %{tmp_dir: dir} do
    path = Path.join(dir, "trace")
    File.write!(path, "success 120\n\nfailure 5000\n")
    assert String.ends_with?(told([inspect(Mail), "trace:#{path}"]), drawn({:trace, [success: 120, failure: 5_000]}))

    for line <- ["success", "failed 1", "success -1", "success 1 2", "success soon"] do
      File.write!(path, line)
      assert refused([inspect(Mail), "trace:#{path}"]) =~ "and not #{inspect(line)}"
    end

    assert refused([inspect(Mail), "trace:#{dir}/none"]) =~ "can not be read: no such file or directory."
  end

  test "takes the options of simulate/3" do
    arguments = ~w(--for 5000 --clients 3 --rate 50 --seed 7 --max-calls 30 --max-attempts 20)
    options = [for: 5_000, clients: 3, rate: 50, seed: 7, max_calls: 30, max_attempts: 20]
    assert String.ends_with?(told([inspect(Mail), "slow:9" | arguments]), drawn({:slow, 9}, options))
  end

  test "says what it does not understand" do
    mail = inspect(Mail)
    assert refused(["No.Such.Module", "always_failing"]) == "There is no module No.Such.Module."
    assert refused([inspect(Other), "always_failing"]) == "#{inspect(Other)} does not use ExternalService."
    assert refused([inspect(Incomplete), "always_failing"]) =~ "required :per option not found"
    assert refused([mail, "always_failing", "--clients", "0"]) =~ "invalid value for :clients option"
    assert refused([mail, "always_failing", "--jitter"]) =~ "--jitter is no option"

    assert refused([mail, "always_failing", "--for", "soon"]) =~
             "--for is no option of mix external_service.simulate, or has"

    for scenario <- ["never", "slow", "slow:-1", "slow:1.5", "slow:", "intermittent:often", "failing_for:10s"],
        do: assert(refused([mail, scenario]) =~ "#{scenario} is no scenario")

    for arguments <- [[], [mail], [mail, "slow:1", "slow:2"]],
        do: assert(refused(arguments) =~ "mix external_service.simulate MyApp.Mail always_failing")
  end
end
