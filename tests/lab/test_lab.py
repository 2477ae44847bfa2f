"""The public names of `bertvision.lab`."""

import subprocess
import sys

import bertvision.lab
import bertvision.lab.reports
import bertvision.lab.searches
import bertvision.lab.studies
import bertvision.pipeline


def test_public_names_are_functions_even_after_their_packages_are_imported():
    from bertvision.lab import Experiment, report, run, search, study

    assert Experiment is bertvision.pipeline.experiment.Experiment
    assert run is bertvision.pipeline.run
    assert study is bertvision.lab.studies.run_study
    assert search is bertvision.lab.searches.run_search
    assert report is bertvision.lab.reports.write_report
    assert set(bertvision.lab.__all__) <= set(dir(bertvision.lab))


def test_importing_the_package_loads_neither_torch_nor_optuna():
    code = "import sys, bertvision.lab; print([name for name in ('torch', 'optuna', 'altair') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors():
    assert not hasattr(bertvision.lab, "nonsense")
