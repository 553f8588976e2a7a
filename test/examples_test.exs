# SPDX-License-Identifier: Apache-2.0
defmodule ExternalService.ExamplesTest do
  # Runs the examples as a user does, in a mix of their own, but faster.
  use ExUnit.Case, async: true

  @moduletag timeout: 120_000

  setup_all do
    {output, status} = run("examples", seconds: 4)
    {:ok, output: output, status: status}
  end

  describe "the demo" do
    test "ends well when the breaker opens and recovers, and says what the breaker saved",
         %{output: output, status: status} do
      assert status == 0
      assert output =~ ~r/20 clients made [1-9]\d* calls/
      assert output =~ ~r/The breaker opened (once|\d+ times)/
      assert output =~ ~r/The first good call came \d+ ms after the server's return/

      [with_breaker] = numbers(output, ~r/server was dead, (\d+) attempts reached for it/)
      [without, calls, attempts] = numbers(output, ~r/Without a breaker (\d+) would have: (\d+) calls x (\d+) attempts/)
      assert without == calls * attempts
      assert with_breaker < without
    end

    @tag :tmp_dir
    test "fails when the breaker can not open", %{tmp_dir: tmp_dir} do
      sabotage(tmp_dir, "tolerate: 80", "tolerate: :infinity")
      assert {output, 1} = run(tmp_dir, seconds: 2)
      assert output =~ "The breaker did not open while the server was dead."
    end

    @tag :tmp_dir
    test "fails when the breaker does not recover", %{tmp_dir: tmp_dir} do
      sabotage(tmp_dir, "reset: Demo.Pace.ms(1_000)", "reset: 60_000")
      assert {output, 1} = run(tmp_dir, seconds: 3)
      assert output =~ "The breaker did not recover"
    end

    test "writes no colours into a pipe", %{output: output} do
      assert output =~ "closed"
      refute output =~ "\e["
    end

    test "writes colours where FORCE_COLOR asks for them" do
      {output, _status} = run("examples", seconds: 1, env: [{"FORCE_COLOR", "1"}])
      assert output =~ "\e[32mclosed"
    end
  end

  # A copy of the examples, with one option of the demo's service changed.
  defp sabotage(folder, option, replacement) do
    File.cp_r!("examples", folder)
    service = Path.join(folder, "demo/weather.exs")
    source = File.read!(service)
    assert source =~ option
    File.write!(service, String.replace(source, option, replacement))
  end

  defp run(folder, options) do
    env = [{"MIX_ENV", "test"}, {"DEMO_SECONDS", "#{options[:seconds]}"}, {"NO_COLOR", nil}, {"FORCE_COLOR", nil}]
    arguments = ["run", "--no-compile", Path.join(folder, "demo.exs")]
    System.cmd("mix", arguments, env: env ++ Keyword.get(options, :env, []), stderr_to_stdout: true)
  end

  defp numbers(output, pattern) do
    [_whole | digits] = Regex.run(pattern, output)
    Enum.map(digits, &String.to_integer/1)
  end
end
